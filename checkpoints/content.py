"""A trained model in a folder of its own, for use without its run: `model.safetensors`,
`config.json`, `tokenizer/`.

A tensor that stands in the model under several names is stored once; the other names are in the
file's metadata.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from checkpoints.run import FORMAT, WEIGHTS, DamagedError, Run, _progress
from configs.load import read_config_json, write_config_json
from configs.schema import Config
from configs.serialize import from_dict, to_dict
from tokenizer.base import BaseTokenizer
from utils.errors import UserError
from utils.files import atomic_path, write_errors

CONFIG, TOKENIZER = "config.json", "tokenizer"
_ABOUT = {"version", "tied", "crc32", "fingerprint", "progress"}  # what the metadata tell


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write in, which becomes `path` when all is written; after an error nothing is
    left of it.

    Raises UserError where `path` is there already, unless it is an empty folder, and where it
    cannot be made.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"--output_dir {path} is not empty: give a new folder")
    with atomic_path(path) as folder:
        folder.mkdir(parents=True)
        yield folder


def write_safetensors(
    model: nn.Module,
    config: Config,
    tokenizer: BaseTokenizer,
    progress: Mapping[str, int],
    folder: Path,
) -> None:
    """Weights, config and tokenizer of a run into `folder`, which is there; `progress`: its epoch
    and step.
    """
    tensors: dict[str, Tensor] = {}
    first: dict[tuple[int, tuple[int, ...]], str] = {}  # by place in memory
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if place in first:
            tied[name] = first[place]
        else:
            first[place] = name
            tensors[name] = tensor.contiguous()
    about = {
        "version": FORMAT,
        "tied": tied,
        "crc32": checksum(tensors),
        "fingerprint": tokenizer.fingerprint(),
        "progress": dict(progress),
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "about": json.dumps(about)})
    write_config_json(config, folder / CONFIG)
    tokenizer.save(folder / TOKENIZER)


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of names, types, shapes and values."""
    crc = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc


def read_safetensors(path: Path) -> dict[str, Any]:
    """What `write_safetensors` wrote, as the content of a checkpoint
    (`checkpoints.run.read_checkpoint`).

    Raises UserError for a file that is missing, damaged, of another kind, or of a newer format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if not about.keys() <= _ABOUT:
            raise KeyError
        whole = "crc32" not in about or about["crc32"] == checksum(
            tensors
        )  # older exports have none
        tensors |= {name: tensors[other] for name, other in about["tied"].items()}
        version, fingerprint, progress = (
            int(about["version"]),
            str(about["fingerprint"]),
            dict(about["progress"]),
        )
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path}: not a whole safetensors file ({str(error)[:120]}); export it again"
        ) from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise UserError(
            f"{path}: a safetensors file, but not one that this project exported"
        ) from None
    if version > FORMAT:
        raise UserError(
            f"{path}: format {version} is newer than this program's {FORMAT}: update the code"
        )
    if not whole:
        raise UserError(f"{path}: the weights are damaged (wrong checksum); export it again")
    config = read_config_json(path.parent / CONFIG)
    return {
        "format": {"version": version},
        "config": to_dict(config),
        "model": tensors,
        "tokenizer": {"fingerprint": fingerprint},
        "progress": progress,
    }


def write_checkpoint(path: Path, payload: Any) -> None:
    """Write a whole checkpoint, or none. Where the folder has gone it is made again, unless the run
    has gone too.
    """
    with write_errors(path):
        path.parent.mkdir(exist_ok=True)
        with atomic_path(path) as aside, aside.open("wb") as file:
            try:
                torch.save(payload, file)
            except RuntimeError as error:  # of a full disk
                raise OSError(str(error).splitlines()[0][:200]) from error


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Raises UserError for a file that is missing, damaged, of another kind, or of a newer format.
    """
    if path.name == WEIGHTS:
        return read_safetensors(path)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
        _require_checksums(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such checkpoint") from None
    except Exception as error:  # torch raises many kinds: zip, pickle, EOF, runtime
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if reason.startswith(
            "Weights only load failed"
        ):  # torch's long advice is not for this reader
            reason = "it is another kind of file, or holds more than tensors and plain values"
        raise DamagedError(
            f"{path}: not a whole checkpoint ({reason[:120]}); {_instead_of(path)}"
        ) from error
    about = payload.get("format") if isinstance(payload, dict) else None
    version = about.get("version") if isinstance(about, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise UserError(
            f"{path}: checkpoint format {version} is newer than this program's {FORMAT}: update the code"
        )
    if not isinstance(version, int) or not _has_parts(payload):
        raise UserError(f"{path}: a torch file, but not a checkpoint of this project")
    return payload


def _instead_of(damaged: Path) -> str:
    """What a user may take for a damaged checkpoint: the one before it, or else the first one after
    it.
    """
    files = Run(damaged.parent.parent).by_age()
    place = next((i for i, path in enumerate(files) if path.name == damaged.name), len(files))
    before = [path for path in files[:place] if _progress(path)]
    after = [path for path in files[place + 1 :] if _progress(path)]
    if before:
        return f"the one before it is {before[-1]}"
    return (
        f"the one after it is {after[0]}" if after else f"there is no other one in {damaged.parent}"
    )


def _require_checksums(path: Path) -> None:
    """Raises BadZipFile where a bit of the file has changed: torch writes checksums, and does not
    look at them.
    """
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {damaged.partition('/')[2]}")


def _has_parts(payload: Mapping[str, Any]) -> bool:
    """Whether the parts that a checkpoint must have are there, and are of the kinds that its
    readers count on.
    """
    if not {"config", "model", "tokenizer"} <= payload.keys():
        return False
    model, tokenizer, progress = payload["model"], payload["tokenizer"], payload.get("progress", {})
    return (
        isinstance(model, dict)
        and all(
            isinstance(name, str) and isinstance(value, torch.Tensor)
            for name, value in model.items()
        )
        and isinstance(tokenizer, dict)
        and isinstance(tokenizer.get("fingerprint"), str)
        and isinstance(progress, dict)
        and all(isinstance(progress.get(name, 0), int) for name in ("epoch", "step"))
    )


def checkpoint_config(payload: Mapping[str, Any]) -> Config:
    """The resolved configuration inside a checkpoint; data, never executed."""
    return from_dict(payload["config"])
