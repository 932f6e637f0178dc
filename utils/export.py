"""A trained model in a folder of its own, for use without its run: `model.safetensors`, `config.json`, `tokenizer/`.

A tensor that stands in the model under several names is stored once; the other names are in the file's metadata.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from configs.errors import UserError
from configs.serialize import to_dict
from utils.config import read_config_json, write_config_json
from utils.files import sync
from utils.runs import FORMAT, WEIGHTS

if TYPE_CHECKING:
    from utils.translation import LoadedRun

CONFIG, TOKENIZER = "config.json", "tokenizer"
_ABOUT = {"version", "tied", "crc32", "fingerprint", "progress"}  # what the metadata tell


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write in, which becomes `path` when all is written; after an error nothing is left of it.

    Raises UserError where `path` is there already, unless it is an empty folder, and where it cannot be made.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise UserError(f"--output_dir {path} is not empty: give a new folder")
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        aside.mkdir(parents=True)
        yield aside
        for made in (*aside.rglob("*"), aside):
            sync(made)
        os.replace(aside, path)
        sync(path.parent)
    except OSError as error:
        raise UserError(f"--output_dir {path}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_safetensors(loaded: LoadedRun, folder: Path) -> None:
    """Weights, config and tokenizer of a run into `folder`, which is there."""
    tensors: dict[str, Tensor] = {}
    first: dict[tuple[int, tuple[int, ...]], str] = {}  # by place in memory
    tied: dict[str, str] = {}
    for name, tensor in loaded.model.state_dict().items():
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
        "fingerprint": loaded.tokenizer.fingerprint(),
        "progress": {"epoch": loaded.epoch, "step": loaded.step},
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt", "about": json.dumps(about)})
    write_config_json(loaded.config, folder / CONFIG)
    loaded.tokenizer.save(folder / TOKENIZER)


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of names, types, shapes and values."""
    crc = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc


def read_safetensors(path: Path) -> dict[str, Any]:
    """What `write_safetensors` wrote, as the content of a checkpoint (`utils.runs.read_checkpoint`).

    Raises UserError for a file that is missing, damaged, of another kind, or of a newer format.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["about"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        if not about.keys() <= _ABOUT:
            raise KeyError
        whole = "crc32" not in about or about["crc32"] == checksum(tensors)  # older exports have none
        tensors |= {name: tensors[other] for name, other in about["tied"].items()}
        version, fingerprint, progress = int(about["version"]), str(about["fingerprint"]), dict(about["progress"])
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a whole safetensors file ({str(error)[:120]}); export it again") from error
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise UserError(f"{path}: a safetensors file, but not one that this project exported") from None
    if version > FORMAT:
        raise UserError(f"{path}: format {version} is newer than this program's {FORMAT}: update the code")
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
