"""Evaluation of a trained model on a split of a corpus: loss, translations, scores, files."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from configs.schema import DecodeConfig, Sampling
from configs.serialize import to_dict
from data.batching import make_eval_loader
from data.cache import TokenizedSplit, load_split
from data.corpora.base import CorpusReader
from data.corpora.build import build_corpus
from data.corpora.text import normalize_whitespace, warn_of_form
from models.transformer import TranslationTransformer
from translation.loading import LoadedRun
from translation.metrics import (
    CorpusScores,
    PairedResult,
    chrf_statistics,
    compare_statistics,
    format_scores,
    human_agreement,
    paired_bootstrap,
    score_corpus,
    sentence_chrf,
    summed_chrf,
)
from translation.settings import search_name
from translation.translator import Translator
from utils.errors import UserError
from utils.files import crc32, sha256, write_text
from utils.machine import provenance
from utils.progress import Bar


def _record(start: str) -> dict[str, Any]:
    """What a scores file says; nothing where there is no whole one."""
    try:
        return dict(json.loads(Path(f"{start}_scores.json").read_text("utf-8")))
    except (OSError, RecursionError, TypeError, ValueError):
        return {}


def choose_splits(corpus: CorpusReader, wanted: str | None) -> tuple[str, ...]:
    """The test splits, or the wanted one. Raises UserError if the corpus does not have it.

    "validation" is that split, whatever the corpus calls it.
    """
    if wanted is None:
        return corpus.test
    known = dict.fromkeys(corpus.splits)
    if wanted == "validation" and wanted not in known:
        wanted = corpus.validation
    if wanted not in known:
        raise UserError(f"--split {wanted}: the corpus has {', '.join(known)}")
    return (wanted,)


def first_pairs(ids: TokenizedSplit, limit: int | None) -> TokenizedSplit:
    """The first `limit` pairs; None: all."""
    if limit is None:
        return ids
    src, tgt = ids.src_offsets[: limit + 1], ids.tgt_offsets[: limit + 1]
    return replace(ids, src_offsets=src, tgt_offsets=tgt, kept=ids.kept[:limit])


class EvaluationSet:
    """The pairs of a split (the first `limit` of them) as one run reads and translates them."""

    def __init__(
        self, loaded: LoadedRun, translator: Translator, split: str, greedy: bool, limit: int | None
    ) -> None:
        data = loaded.config.data
        text, ids = load_split(data, build_corpus(data), split, loaded.tokenizer, training=False)
        ids = first_pairs(ids, limit)
        self.loaded, self.translator = loaded, translator
        self.split, self.greedy, self.limit = split, greedy, limit
        self.text, self.ids = text, ids
        self.sources = [text.src[int(i)] for i in ids.kept]
        self.references = [text.tgt[int(i)] for i in ids.kept]

    @property
    def name(self) -> str:
        """Begins the names of the result's files.

        A part of a split, an ensemble and a search in another type than float32 have names of their
        own, so that they never pass for the whole, the first model or the exact result.
        """
        decode = self.loaded.config.decode
        part = "" if self.limit is None else f"_first{self.limit}"
        search = search_name("greedy" if self.greedy else decode.search.kind, decode)
        several = f"_ensemble{len(self.loaded.members)}" if self.loaded.partners else ""
        precision = self.translator.searcher.precision
        precision = "" if precision == "float32" else f"_{precision}"
        return f"{self.split.replace(os.sep, '_')}{part}_{search}{several}{precision}"

    def identity(self) -> dict[str, Any]:
        """All that decides the translations, as plain values."""
        config = self.loaded.config
        return {
            **search_identity(self.loaded, self.translator, greedy=self.greedy),
            "data_fingerprint": self.text.fingerprint(),
            "limit": self.limit,
            "max_len": config.data.max_len,
            "eval_long": config.data.eval_long,
        }

    def loss_and_accuracy(self) -> tuple[float, float]:
        """Loss (nats a target token) and accuracy, given the reference's tokens, in float32."""
        from translation.evaluator import create_evaluator  # here: ignite takes half a second

        pad_id, bos_id = self.loaded.tokenizer.pad_id, self.loaded.tokenizer.bos_id
        device = self.translator.searcher.device
        size = self.loaded.config.evaluate.batch_on(device.type)
        loader = make_eval_loader(self.ids, batch_size=size, pad_id=pad_id, bos_id=bos_id)
        network = self.loaded.network(device)
        model = cast(TranslationTransformer, network)  # an ensemble has all that is used
        evaluator = create_evaluator(model, pad_id=pad_id, device=device, dtype=torch.float32)
        metrics = evaluator.run(loader).metrics
        return metrics["loss"], metrics["accuracy"]

    def translate(self, decode: DecodeConfig | None = None) -> tuple[list[str], float, int]:
        """The best hypothesis of every source as one line, the search's seconds, how many are cut.

        The search is as in `decode` (None: as in the run's configuration), which limits lengths.
        """
        began = time.perf_counter()
        sources = [self.ids.src(i).tolist() for i in range(len(self.ids))]
        with Bar(total=len(sources), unit="sentence", leave=False, disable=None) as bar:
            found = self.translator.searcher.search_ids(
                sources, decode or self.translator.decode, greedy=self.greedy, progress=bar.update
            )
        seconds = time.perf_counter() - began
        texts = self.loaded.tokenizer.decode_batch([best.ids for best, *_ in found])
        cut_off = sum(not best.finished for best, *_ in found)
        return list(map(normalize_whitespace, texts)), seconds, cut_off

    def stored_hypotheses(self) -> list[str] | None:
        """What test.py found before with the same checkpoint, text and search, if undamaged."""
        start, identity = f"{self.loaded.run.results / self.name}", self.identity()
        for name in (start, _set_aside_as(start, identity["checkpoint"])):
            with suppress(OSError, ValueError, KeyError, TypeError):
                record, file = _record(name), Path(f"{name}.hyp.txt")
                lines = file.read_text("utf-8").split("\n")[:-1]
                same = all(record[key] == value for key, value in identity.items())
                whole = record["hyp_crc32"] == crc32(file) and len(lines) == record["scores"]["n"]
                if same and whole:
                    return lines
        return None


@dataclass(frozen=True, slots=True)
class Result:
    """An evaluation set, translated and scored."""

    pairs: EvaluationSet
    hypotheses: list[str]
    scores: CorpusScores
    loss: float  # nats a target token, without smoothing
    accuracy: float
    seconds: float  # of the search
    cut_off: int  # translations that the limits of length ended

    @property
    def character_loss(self) -> float | None:
        """Nats a character of the references, which can be compared between tokenizers.

        None where a reference may have been cut: the loss is then of a part of them.
        """
        ids, data = self.pairs.ids, self.pairs.loaded.config.data
        if data.eval_long == "truncate" and ids.tgt_lengths.max() >= data.max_len:
            return None
        return float(self.loss * ids.tgt_lengths.sum() / sum(map(len, self.pairs.references)))

    def block(self) -> str:
        """The scores for a human reader."""
        of_characters = self.character_loss
        said = "–" if of_characters is None else f"{of_characters:.4f}"
        skipped = ", ".join(f"{n:,} {why}" for why, n in self.pairs.text.skipped.items())
        left_out = f"left out of the split: {skipped}\n" if skipped else ""
        if self.cut_off:
            limits = "decode.max_len or decode.max_len_ratio"
            left_out += f"translations cut off by {limits}: {self.cut_off:,}\n"
        return (
            f"=== {self.pairs.name} ===\n{format_scores(self.scores)}\n{left_out}"
            f"loss {self.loss:.4f}, token accuracy {self.accuracy:.4f}, "
            f"loss a character {said}; translated in {self.seconds:.1f} s"
        )

    def write(self) -> Path:
        """Write source, reference, hypotheses and scores beside the run; returns the scores' path.

        Earlier files of another checkpoint are kept, under its name.
        """
        pairs, loaded, searcher = self.pairs, self.pairs.loaded, self.pairs.translator.searcher
        record = {
            **pairs.identity(),
            "skipped": dict(pairs.text.skipped),
            "loss": self.loss,
            "accuracy": self.accuracy,
            "character_loss": self.character_loss,
            "scores": asdict(self.scores),
            "search_seconds": self.seconds,
            "cut_off": self.cut_off,
            "epoch": loaded.epoch,
            "step": loaded.step,
            "engine": "torch" if searcher.engine is None else searcher.engine.name,
            "trained": loaded.trained,
            "provenance": provenance(searcher.device),
            "config": to_dict(loaded.config),
        }
        start = f"{loaded.run.results / pairs.name}"
        _set_aside(start, pairs.identity())
        columns = {"src": pairs.sources, "ref": pairs.references, "hyp": self.hypotheses}
        for suffix, lines in columns.items():
            file = Path(f"{start}.{suffix}.txt")
            write_text(file, "".join(f"{line}\n" for line in lines))
            record[f"{suffix}_crc32"] = crc32(file)
        # Last: where this file exists, the rest is whole.
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        return write_text(Path(f"{start}_scores.json"), text)

    def worst(self, n: int) -> str:
        """The n translations with the lowest chrF, worst first, for a human reader."""
        scores = sentence_chrf(self.hypotheses, self.pairs.references)
        rows = sorted(range(len(scores)), key=scores.__getitem__)[:n]
        return f"lowest chrF:\n{self._shown(rows, [(self.hypotheses, scores)])}"

    def _shown(
        self, rows: Sequence[int], systems: Sequence[tuple[Sequence[str], Sequence[float]]]
    ) -> str:
        """Source, reference, and the translations with their chrF, of some lines of the split."""
        sides = {"src": self.pairs.sources, "ref": self.pairs.references}
        lines = []
        for row in rows:
            lines.append(f"line {row + 1:,}")
            lines += [f"    {name}    {side[row]}" for name, side in sides.items()]
            lines += [f"  {scores[row]:5.1f}    {texts[row]}" for texts, scores in systems]
        return "\n".join(lines)

    def compared_with(self, other: EvaluationSet, *, worst: int = 0) -> str:
        """Paired bootstrap against another run's translations of the same pairs, in one line.

        Translations that test.py wrote before are used, if nothing has changed since. worst: so
        many sentences whose chrF differs most follow. Raises UserError where the other run leaves
        out other pairs of the split.
        """
        pairs = self.pairs
        if other.references != pairs.references:
            raise UserError(
                f"{other.loaded.run.path} was scored on other pairs of {other.split}: "
                "compare on one corpus, with --config or --set"
            )
        stored = other.stored_hypotheses()
        theirs = stored if stored is not None else other.translate()[0]
        samples = pairs.loaded.config.evaluate.bootstrap_samples
        sides = self.hypotheses, theirs, pairs.references
        language = pairs.loaded.config.data.tgt_lang
        paired = paired_bootstrap(*sides, samples=samples, seed=0, language=language)
        systems = pairs.loaded, other.loaded
        several = [f" and {len(each.partners)} more" * bool(each.partners) for each in systems]
        one, two = (each.run.name + more for each, more in zip(systems, several))
        if one == two and len({each.run.path.resolve() for each in systems}) == 1:
            one, two = (each.checkpoint.name for each in systems)
        if pairs.loaded.config.decode.neighbours.datastore:  # the other has none
            one += " with neighbours"
        both = (chrf_statistics(side, pairs.references) for side in sides[:2])
        chrf = compare_statistics(*both, samples=samples, seed=0, score=summed_chrf)
        shown = f"\nchrF {chrf.score_a:.2f}, {chrf.score_b:.2f}: {_apart(chrf)}"
        if worst:
            each = [sentence_chrf(texts, pairs.references) for texts in sides[:2]]
            apart = [abs(a - b) for a, b in zip(*each)]
            rows = sorted(range(len(apart)), key=apart.__getitem__, reverse=True)[:worst]
            what = f"chrF differs most, {one} first"
            shown += f"\n{what}:\n{self._shown(rows, list(zip(sides, each)))}"
        return (
            f"{pairs.name}: {one} {paired.score_a:.2f}, {two} {paired.score_b:.2f}: "
            f"{_apart(paired)} (paired bootstrap of sacreBLEU, "
            f"{samples:,} times {paired.n:,} sentences); of systems so far apart people prefer the "
            f"better in {human_agreement(paired.difference):.0f} of 100 (Kocmi et al. 2024){shown}"
        )


def _apart(found: PairedResult) -> str:
    low, high = found.interval
    of_chance = f"95% interval {low:+.2f} to {high:+.2f}, p = {found.p_value:.3f}"
    return f"second minus first {found.difference:+.2f}, {of_chance}"


def _set_aside_as(start: str, checkpoint: str) -> str:
    """Begins the names of a checkpoint's results while those of another have the plain names."""
    return f"{start}_{Path(checkpoint).stem}"


def _set_aside(start: str, identity: Mapping[str, Any]) -> None:
    """Rename another checkpoint's results after it; say so where this one's are replaced."""
    checkpoint = identity["checkpoint"]
    own = _set_aside_as(start, checkpoint)
    there = str(_record(start).get("checkpoint") or checkpoint)
    moved = "" if there == checkpoint else _set_aside_as(start, there)
    replaced = own if moved else start
    if (record := _record(replaced)) and any(record.get(k, v) != v for k, v in identity.items()):
        what = "which were of other weights, another text or search"
        print(f"replaced: {replaced}.*, {what}", file=sys.stderr)
    # The record last: what a kill left half moved is moved the next time.
    for suffix in (".src.txt", ".ref.txt", ".hyp.txt", "_scores.json") if moved else ():
        with suppress(FileNotFoundError):
            os.replace(f"{start}{suffix}", f"{moved}{suffix}")
        Path(f"{own}{suffix}").unlink(missing_ok=True)


def evaluate(pairs: EvaluationSet, *, char_bleu: bool = False, multi30k: bool = False) -> Result:
    warn_of_form(pairs.split, pairs.references)
    loss, accuracy = pairs.loss_and_accuracy()
    hypotheses, seconds, cut_off = pairs.translate()
    config, language = pairs.loaded.config.evaluate, pairs.loaded.config.data.tgt_lang
    scores = score_corpus(
        hypotheses,
        pairs.references,
        pairs.sources,
        length_buckets=config.length_buckets,
        bootstrap_samples=config.bootstrap_samples,
        language=language,
        char_bleu=char_bleu,
        multi30k=language if multi30k else None,
    )
    return Result(pairs, hypotheses, scores, loss, accuracy, seconds, cut_off)


def search_identity(loaded: LoadedRun, translator: Translator, *, greedy: bool) -> dict[str, Any]:
    """All that decides what is found for a text, as plain values."""
    first, *partners = (
        {"checkpoint": each.checkpoint.name, "checkpoint_sha256": each.checksum}
        for each in loaded.members
    )
    near = loaded.config.decode.neighbours
    files = [sha256(Path(os.path.expanduser(path))) for path in near.datastore]
    return {
        **first,
        **({"partners": partners} if partners else {}),
        **({"neighbours": to_dict(near) | {"datastore": files}} if files else {}),
        "search": _search_settings(loaded.config.decode, greedy),
        "precision": translator.searcher.precision,
    }


def _search_settings(decode: DecodeConfig, greedy: bool) -> dict[str, Any]:
    """The search with the settings that decide its best result."""
    by_risk, sampled = decode.mbr is not None, isinstance(decode.search, Sampling)
    used = ["max_len", "max_len_ratio", "length_penalty"]
    used += ["no_repeat_ngram_size"] * bool(decode.no_repeat_ngram_size)  # older files lack it
    if not greedy:
        used += [] if sampled else ["beam_size"]
        used += ["n_best"] if sampled or by_risk else []
        used += ["mbr"] if by_risk else []
    search = {"kind": "greedy"} if greedy else to_dict(decode.search)
    return {**search, **{name: getattr(decode, name) for name in used}}
