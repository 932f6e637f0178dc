"""Finished trainings in one file, a JSON line each: figures, config and statistics of BLEU.

It keeps the statistics of each test sentence that corpus BLEU sums up, so that every table,
bootstrap and figure can be made again without the run, and but for length_extrapolation.py
without the corpus. It has no texts and no weights.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from configs.schema import Config
from configs.serialize import from_dict, to_dict
from experiments.trials import Failed, Trial, say
from translation.settings import config_change
from utils.errors import ConfigError, UserError, one_line
from utils.files import crc32, lock, write_errors

T = TypeVar("T")
say_once = cache(say)
BROKEN = (ValueError, TypeError, KeyError, AttributeError, zlib.error, ConfigError)  # for a line
# The figures that tables need: of a split, and of its scores.
OF_SPLIT = itemgetter("data_fingerprint", "loss", "accuracy", "scores", "provenance")
OF_SCORES = itemgetter("bleu4", "sacrebleu", "interval", "chrf", "n", "signature", "buckets")
OF_TRAINING = itemgetter(
    *("parameters", "training_loss", "validation_loss", "validation_accuracy"),
    *("tokens_per_second", "peak_memory_mb", "train_minutes", "jobs"),
)


@dataclass(frozen=True)
class Sentences:
    """The scored sentences of a split."""

    words: np.ndarray  # [n], of each source, split at white space
    statistics: np.ndarray  # [n,10], see translation.metrics.sentence_statistics

    @classmethod
    def of(cls, trial: Trial, split: str) -> Sentences:
        """The sentences of a scored trial."""
        from translation.metrics import sentence_statistics

        source, reference, found = (trial.lines(split, what) for what in ("src", "ref", "hyp"))
        words = np.array([len(line.split()) for line, _ in zip(source, found, strict=True)])
        return cls(words, sentence_statistics(found, reference, trial.config.data.tgt_lang))

    def pack(self) -> str:
        """Words, both lengths and the four matches; the totals follow from the length."""
        columns = np.column_stack([self.words, self.statistics[:, :6]])
        kind = "<u2" if columns.max() > 255 else "u1"
        content = zlib.compress(columns.astype(kind).tobytes(), 9)
        return f"{kind} {base64.b64encode(content).decode()}"

    @classmethod
    def unpack(cls, packed: str) -> Sentences:
        kind, content = packed.split()
        flat = np.frombuffer(zlib.decompress(base64.b64decode(content)), kind)
        words, *columns = flat.reshape(-1, 7).T.astype(np.int64)
        totals = np.maximum(columns[0][:, None] - np.arange(4), 0)  # n-grams: length + 1 - n
        return cls(words, np.column_stack([*columns, totals]).astype(float))


@dataclass(frozen=True)
class Record:
    """The measurements of a trial. scores and sentences: one for each scored split."""

    run: str
    training: dict[str, Any]  # see Trial.training
    scores: dict[str, dict[str, Any]]  # as test.py wrote them, without the config
    sentences: dict[str, Sentences]
    config: Config

    def __post_init__(self) -> None:
        """Raises KeyError where the scores lack a figure."""
        for of_split in self.scores.values():
            OF_SPLIT(of_split)
            OF_SCORES(of_split["scores"])

    @classmethod
    def of(cls, trial: Trial) -> Record:
        """The record of a trial. Raises Failed where it is not done, or a file is damaged."""
        run = trial.run
        try:
            scores = {split: trial.scores(split) for split in trial.splits}
            for split, of_split in scores.items():
                _require_own(trial, split, of_split)
                of_split.pop("config", None)  # the trial has it
            return cls(
                run=run.relative_to(trial.output_dir).as_posix(),
                training=trial.training(),
                scores=scores,
                sentences={split: Sentences.of(trial, split) for split in trial.splits},
                config=trial.config,
            )
        except (*BROKEN, OSError) as error:
            why = f"a file in its results or logs is damaged ({one_line(error)})"
            how = f"delete {trial.folder}/scored.json to score it again, the folder to train it"
            raise Failed(f"{trial.title}: {run}: {why}: {how}") from None

    @property
    def provenance(self) -> dict[str, str]:
        """The provenance of the scores, and of the training where that differs."""
        first = next(iter(self.scores.values()))
        return {**first["provenance"], **first.get("trained", {})}


def _require_own(trial: Trial, split: str, scores: Mapping[str, Any]) -> None:
    """Raises ValueError where test.py has written others since the trial was scored."""
    decode = to_dict(config_change(None, trial.search, [], best_alone=True)(trial.config).decode)
    theirs = scores.get("config", {}).get("decode", {})  # which may lack a newer field
    if any(decode.get(name, value) != value for name, value in theirs.items()):
        raise ValueError(f"{split} was scored again with another search")
    translations = trial.result_file(split, ".hyp.txt")
    if scores.get("hyp_crc32") not in (None, crc32(translations)):
        raise ValueError(f"{translations.name} is not what was scored")


def read_store(path: Path) -> dict[str, Record]:
    """The records by the digests of their trials; none if there is no file.

    Records with a config that this code does not allow are left out, and named. Raises UserError
    naming a line that cannot be read.
    """

    def record(data: dict[str, Any]) -> tuple[str, Record] | None:
        try:
            config = from_dict(data.pop("config"))
        except ConfigError as error:
            say_once(f"warning: {path}: {data['run']} is left out: {one_line(error)}")
            return None
        splits = tuple(data.pop("splits"))
        how = {"search": data.pop("search"), "average": data.pop("average", 0)}
        how["weights_of"] = data.pop("weights_of", "")
        trial = Trial("", config.train.seed, config, path, (), splits, **how)
        packed = data.pop("sentences")
        sentences = {name: Sentences.unpack(text) for name, text in packed.items()}
        if not sentences or sentences.keys() != data["scores"].keys():
            raise ValueError("scores and sentences are not of the same splits")
        OF_TRAINING(data["training"])
        return trial.digest, Record(**data, sentences=sentences, config=config)

    return dict(filter(None, json_lines(path, record, "no record of a training")))


def add_record(path: Path, trial: Trial, record: Record) -> None:
    """Append a line to the file, which is made if it does not exist."""
    data = {
        "run": record.run,
        "training": record.training,
        "scores": record.scores,
        "search": trial.search,
        "average": trial.average,
        "weights_of": trial.weights_of,
        "splits": trial.splits,
        "config": to_dict(trial.config),
        "sentences": {name: each.pack() for name, each in record.sentences.items()},
    }
    append_line(path, data)


def json_lines(path: Path, read: Callable[[Any], T], wrong: str) -> list[T]:
    """The result of `read` for each line of JSON; none if there is no file.

    Raises UserError naming a line on which `read` fails; `wrong` says what is wrong with it.
    """
    found = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            found.append(read(json.loads(line)))
        except BROKEN as error:
            why = f"{wrong} ({one_line(error)}): name another file, or delete the line"
            raise UserError(f"{path}, line {number}: {why}") from None
    return found


def append_line(path: Path, data: Mapping[str, Any]) -> None:
    """Append data as a line of JSON to the file, which is made if it does not exist.

    The whole line or nothing: raises UserError if the disk has no room for it.
    """
    line = json.dumps(data, separators=(",", ":"), ensure_ascii=False) + "\n"
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            lock(file)  # several experiments may share a store
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            left = file.read(1).replace(b"\n", b"")  # an editor may leave the last line open
            content = b"\n" * len(left) + line.encode()
            try:
                while content:
                    content = content[file.write(content) :]
            except OSError:
                file.truncate(end)
                raise
