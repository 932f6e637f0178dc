"""A trained model against a split of a corpus: loss, translations, scores, and the files that
record them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tqdm import tqdm

from checkpoints.run import Run
from configs.load import load_config
from configs.schema import Config, DecodeConfig, Sampling
from configs.serialize import parse_override, to_dict
from data.batching import make_eval_loader
from data.cache import TokenizedSplit, load_split
from data.corpora.base import CorpusReader, ParallelText
from data.corpora.build import build_corpus
from models.transformer import TranslationTransformer
from translation.arguments import apply_decode_overrides, choose_search
from translation.evaluator import create_evaluator
from translation.metrics import (
    CorpusScores,
    PairedResult,
    format_scores,
    paired_bootstrap,
    score_corpus,
)
from translation.search import search_name
from translation.translator import LoadedRun, Translator, require_same_model
from utils.errors import UserError
from utils.files import write_text
from utils.machine import provenance

MAY_BE_SET = ("data.", "evaluate.", "decode.")


@dataclass(frozen=True, slots=True)
class SplitResult:
    """One split, translated and scored. `identity` is all that decides the translations, as plain
    values.
    """

    run: Run
    name: str  # of the files: split and search
    identity: dict[str, Any]
    sources: list[str]
    references: list[str]
    hypotheses: list[str]
    scores: CorpusScores
    loss: float  # nats a target token, without smoothing
    accuracy: float
    seconds: float  # of the search

    def block(self) -> str:
        """The scores for a human reader."""
        return (
            f"=== {self.name} ===\n{format_scores(self.scores)}\n"
            f"loss {self.loss:.4f}, token accuracy {self.accuracy:.4f}; translated in {self.seconds:.1f} s"
        )


def check_overrides(overrides: list[str]) -> None:
    """Raises UserError for an override of anything that training has fixed."""
    for text in overrides:
        key, _ = parse_override(text)
        if not key.startswith(MAY_BE_SET):
            raise UserError(
                f"--set {text}: {key} was fixed by training; data.*, evaluate.* and decode.* can be set here"
            )


def change_config(
    file: str | None, overrides: list[str], search: str | None = None
) -> Callable[[Config], Config]:
    """What `load_run` does with a checkpoint's config: data, evaluate and decode come from `file`,
    then overrides.

    `search` is the kind of decode.search, as in `choose_search`. One translation is scored: where
    risk does not choose it and decode.n_best is not set in the overrides, no more are asked for.
    The change raises UserError where the file describes another model than the checkpoint's.
    """

    def change(trained: Config) -> Config:
        config = trained
        if file is not None:
            given = load_config(file)
            require_same_model(trained, given, where=file)
            config = dataclasses.replace(
                trained, data=given.data, evaluate=given.evaluate, decode=given.decode
            )
        config = apply_decode_overrides(choose_search(config, search), overrides)
        if config.decode.mbr is None and "decode.n_best" not in {
            parse_override(text)[0] for text in overrides
        }:
            config = dataclasses.replace(
                config, decode=dataclasses.replace(config.decode, n_best=1)
            )
        for name in ("src_lang", "tgt_lang"):
            if getattr(config.data, name) != getattr(trained.data, name):
                raise UserError(
                    f"data.{name} = {getattr(config.data, name)!r}: the model translates {trained.data.src_lang} to "
                    f"{trained.data.tgt_lang}"
                )
        return config

    return change


def choose_splits(corpus: CorpusReader, wanted: str | None) -> tuple[str, ...]:
    """The test splits, or the one that is asked for. Raises UserError for a name that the corpus
    has not.
    """
    if wanted is None:
        return corpus.test
    known = dict.fromkeys((*corpus.test, corpus.validation, corpus.train))
    if wanted not in known:
        raise UserError(f"--split {wanted}: the corpus has {', '.join(known)}")
    return (wanted,)


def evaluate_split(
    loaded: LoadedRun,
    translator: Translator,
    split: str,
    *,
    greedy: bool,
    limit: int | None,
    char_bleu: bool,
) -> SplitResult:
    """Loss and accuracy with the reference at hand, then a search and the scores of what it finds.

    limit: only so many pairs from the start of the split. Computed in float32 whatever the
    training's precision was.
    """
    text, ids = _load(loaded, split, limit)
    loss, accuracy = teacher_forced(loaded, translator, ids)
    hypotheses, seconds = translate_split(translator, ids, greedy=greedy)
    config = loaded.config.evaluate
    sources, references = ([side[int(i)] for i in ids.kept] for side in (text.src, text.tgt))
    scores = score_corpus(
        hypotheses,
        references,
        sources,
        length_buckets=config.length_buckets,
        bootstrap_samples=config.bootstrap_samples,
        char_bleu=char_bleu,
    )
    return SplitResult(
        run=loaded.run,
        name=result_name(loaded, split, greedy=greedy, limit=limit),
        identity=_identity(loaded, text, greedy, limit),
        sources=sources,
        references=references,
        hypotheses=hypotheses,
        scores=scores,
        loss=loss,
        accuracy=accuracy,
        seconds=seconds,
    )


def references_of(
    loaded: LoadedRun, split: str, limit: int | None
) -> tuple[list[str], TokenizedSplit]:
    """The references of a split, or of its first `limit` pairs, and the ids of both sides."""
    text, ids = _load(loaded, split, limit)
    return [text.tgt[int(i)] for i in ids.kept], ids


def teacher_forced(
    loaded: LoadedRun, translator: Translator, ids: TokenizedSplit
) -> tuple[float, float]:
    """Loss (nats a target token) and accuracy of predicting each token of the reference from those
    before it.
    """
    pad_id, bos_id = loaded.tokenizer.pad_id, loaded.tokenizer.bos_id
    loader = make_eval_loader(
        ids, batch_size=loaded.config.evaluate.batch_size, pad_id=pad_id, bos_id=bos_id
    )
    model = cast(TranslationTransformer, translator.model)  # an ensemble offers what is used of it
    evaluator = create_evaluator(
        model, pad_id=pad_id, device=translator.device, dtype=torch.float32
    )
    metrics = evaluator.run(loader).metrics
    return metrics["loss"], metrics["accuracy"]


def translate_split(
    translator: Translator, ids: TokenizedSplit, *, greedy: bool
) -> tuple[list[str], float]:
    """The best hypothesis of every sentence as one line of text, and the seconds that it took."""
    began = time.perf_counter()
    name = search_name(translator.decode, greedy=greedy)
    with tqdm(
        total=len(ids), unit="sentence", desc=name, leave=False, disable=not sys.stderr.isatty()
    ) as bar:
        found = translator.search_ids(
            [ids.src(i).tolist() for i in range(len(ids))], greedy=greedy, progress=bar.update
        )
    seconds = time.perf_counter() - began
    return [
        " ".join(translator.tokenizer.decode(hypotheses[0].ids).split()) for hypotheses in found
    ], seconds


def write_results(result: SplitResult, loaded: LoadedRun) -> Path:
    """Source, reference, hypotheses and scores beside the run; the path of the scores. Raises
    UserError.
    """
    record = {
        **result.identity,
        "loss": result.loss,
        "accuracy": result.accuracy,
        "scores": result.scores.to_dict(),
        "search_seconds": result.seconds,
        "epoch": loaded.epoch,
        "step": loaded.step,
        "precision": "float32",
        "provenance": provenance(),
        "config": to_dict(loaded.config),
    }
    folder = result.run.results
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, lines in (
            ("src", result.sources),
            ("ref", result.references),
            ("hyp", result.hypotheses),
        ):
            write_text(
                folder / f"{result.name}.{suffix}.txt", "".join(f"{line}\n" for line in lines)
            )
        path = folder / f"{result.name}_scores.json"  # last: where it stands, the rest is whole
        write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(
            f"{folder}: the results cannot be written: {error.strerror}; make room or copy the run"
        ) from None
    return path


def hypotheses_of_other(
    other: LoadedRun,
    translator: Translator,
    split: str,
    result: SplitResult,
    *,
    greedy: bool,
    limit: int | None,
) -> list[str]:
    """Translations of the same pairs by another run: those that test.py wrote before, if nothing
    has changed since.

    Raises UserError where the other run leaves out other pairs of the split.
    """
    text, ids = _load(other, split, limit)
    if [text.tgt[int(i)] for i in ids.kept] != result.references:
        raise UserError(
            f"{other.run.path} was given other pairs of {split}: compare on one corpus, with --config or --set"
        )
    name = result_name(other, split, greedy=greedy, limit=limit)
    stored = _stored_hypotheses(other.run, name, _identity(other, text, greedy, limit))
    return stored if stored is not None else translate_split(translator, ids, greedy=greedy)[0]


def compare(
    result: SplitResult, hypotheses: list[str], *, samples: int, seed: int = 0
) -> PairedResult:
    """Paired bootstrap of this result (a) against another run's translations (b) of the same pairs."""
    return paired_bootstrap(
        result.hypotheses, hypotheses, result.references, samples=samples, seed=seed
    )


def comparison_line(result: SplitResult, other: LoadedRun, paired: PairedResult) -> str:
    """What the paired bootstrap found, in one line."""
    low, high = paired.interval
    return (
        f"{result.name}: {result.run.path.name} {paired.bleu_a:.2f}, {other.run.path.name} {paired.bleu_b:.2f}: "
        f"second minus first {paired.difference:+.2f}, 95% interval {low:+.2f} to {high:+.2f}, "
        f"p = {paired.p_value:.3f} (paired bootstrap of sacreBLEU, {paired.n_samples:,} times {paired.n:,} sentences)"
    )


def result_name(loaded: LoadedRun, split: str, *, greedy: bool, limit: int | None) -> str:
    """Of the files of a result. A part of a split has a name of its own, so that it never passes
    for the whole.

    So has an ensemble, which never passes for its first model.
    """
    part = "" if limit is None else f"_first{limit}"
    several = f"_ensemble{len(loaded.members)}" if loaded.partners else ""
    return f"{split.replace(os.sep, '_')}{part}_{search_name(loaded.config.decode, greedy=greedy)}{several}"


def _load(loaded: LoadedRun, split: str, limit: int | None) -> tuple[ParallelText, TokenizedSplit]:
    data = loaded.config.data
    text, ids = load_split(data, build_corpus(data), split, loaded.tokenizer, training=False)
    if limit is not None:
        src, tgt = ids.src_offsets[: limit + 1], ids.tgt_offsets[: limit + 1]
        ids = dataclasses.replace(ids, src_offsets=src, tgt_offsets=tgt, kept=ids.kept[:limit])
    return text, ids


def _identity(
    loaded: LoadedRun, text: ParallelText, greedy: bool, limit: int | None
) -> dict[str, Any]:
    """All that decides the translations of a split."""
    config = loaded.config
    partners = (
        {"partners": [_checkpoint(partner) for partner in loaded.partners]}
        if loaded.partners
        else {}
    )
    return {
        **_checkpoint(loaded),
        **partners,
        "data_fingerprint": text.fingerprint(),
        "limit": limit,
        "max_len": config.data.max_len,
        "eval_long": config.data.eval_long,
        "search": _search_identity(config.decode, greedy),
    }


def _checkpoint(loaded: LoadedRun) -> dict[str, str]:
    with loaded.checkpoint.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"checkpoint": loaded.checkpoint.name, "checkpoint_sha256": digest}


def _search_identity(decode: DecodeConfig, greedy: bool) -> dict[str, Any]:
    """The search with the settings that decide what it finds first."""
    used = ["max_len", "max_len_ratio", "length_penalty"]
    if greedy:
        return {"kind": "greedy", **{name: getattr(decode, name) for name in used}}
    sampled = isinstance(decode.search, Sampling)
    used += [] if sampled else ["beam_size"]
    used += ["n_best"] if sampled or decode.mbr is not None else []
    used += ["mbr"] if decode.mbr is not None else []
    return {**to_dict(decode.search), **{name: getattr(decode, name) for name in used}}


def _stored_hypotheses(run: Run, name: str, identity: dict[str, Any]) -> list[str] | None:
    """What an earlier test.py found with the same checkpoint, text and search; None where it is not
    there whole.
    """
    try:
        record = json.loads((run.results / f"{name}_scores.json").read_text("utf-8"))
        lines = (run.results / f"{name}.hyp.txt").read_text("utf-8").split("\n")[:-1]
        same = all(record[key] == value for key, value in identity.items())
        return lines if same and len(lines) == record["scores"]["n"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
