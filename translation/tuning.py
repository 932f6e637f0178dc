"""Tunes a search: BLEU by beam size, length penalty and other fields on a split, and the best."""

import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.schema import Beam, DecodeConfig
from models.decoding.neighbours import NearestNeighbours
from translation.evaluation import EvaluationSet
from translation.metrics import sacrebleu_score
from utils.tables import markdown_table


@dataclass(frozen=True, slots=True)
class Grid:
    """sacreBLEU of (*values of `varied` fields, beam size, length penalty) on `split`.

    n: of that split's sentences.
    """

    split: str
    n: int
    bleu: dict[tuple[*tuple[str, ...], int, float], float]
    varied: tuple[str, ...] = ()

    def best(self) -> tuple[*tuple[str, ...], int, float]:
        """The highest BLEU's; if equal, the smaller beam, then penalty, then the first values."""
        return min(self.bleu, key=lambda cell: (-self.bleu[cell], *cell[-2:]))

    def markdown(self) -> str:
        """A table with a row for each beam size and combination of values, the best bold."""
        *_, beams, penalties = (sorted(set(side)) for side in zip(*self.bleu))
        shown = {cell: f"{bleu:.2f}" for cell, bleu in self.bleu.items()}
        shown[self.best()] = f"**{shown[self.best()]}**"
        header = [*self.varied, "beam", *(f"penalty {penalty:g}" for penalty in penalties)]
        rows = [
            [*values, beam, *(shown[*values, beam, penalty] for penalty in penalties)]
            for values in dict.fromkeys(cell[:-2] for cell in self.bleu)
            for beam in beams
        ]
        return markdown_table(header, rows)

    def flags(self, models: Sequence[str | Path] = (), overrides: Sequence[str] = ()) -> str:
        """How to use the best setting: in inference.py, in test.py, and in a config file.

        models, overrides: the values of --model_path and --set. If these set more of decode, the
        config file's line is left out, since it would lack that.
        """
        *values, beam, penalty = self.best()
        chosen = list(map("=".join, zip(self.varied, values)))
        overrides = [*overrides, *chosen]
        named = ["--model_path", *map(str, models)] if models else []

        def command(script: str, *flags: str, of: str = "") -> str:
            sets = (word for each in overrides if each.startswith(of) for word in ("--set", each))
            return shlex.join(["python", script, *flags, *named, *sets])

        alpha = repr(penalty).removesuffix(".0")
        as_flags = "--beam_size", str(beam), "--length_penalty", alpha
        as_sets = "--set", f"decode.beam_size={beam}", "--set", f"decode.length_penalty={alpha}"
        lines = [
            f"best: {', '.join([*chosen, f'beam {beam}'])}, length penalty {penalty:g} "
            f"({self.split}, {self.n:,} sentences)",
            command("inference.py", *as_flags, of="decode."),
            command("test.py", *as_sets),
        ]
        if not any(each.startswith("decode.") for each in overrides):
            fields = f"beam_size={beam}, length_penalty={penalty!r}, n_best={min(beam, 5)}"
            lines.append(f"decode=replace(base.decode, {fields})")
        return "\n".join(lines)


def tune(
    pairs: EvaluationSet,
    settings: Mapping[tuple[str, ...], DecodeConfig],
    varied: tuple[str, ...] = (),
    *,
    beams: Sequence[int],
    penalties: Sequence[float],
) -> Grid:
    """Search and score every pair of beam size and length penalty; reports to standard error.

    settings: the searches, each by its values of the `varied` fields.

    A beam of 1 is greedy search, which ends with its first hypothesis whatever the penalty, and is
    run once. Larger beams are run for each penalty, since it decides when a search ends and which
    hypotheses are kept.
    """
    language, model = pairs.loaded.config.data.tgt_lang, pairs.translator.searcher.model
    ordered = sorted(set(penalties))
    bleu: dict[tuple[*tuple[str, ...], int, float], float] = {}
    for values, decode in settings.items():
        if isinstance(model, NearestNeighbours):
            near = decode.neighbours
            model.k, model.temperature, model.weight = near.k, near.temperature, near.weight
        plain = replace(decode, search=Beam(), mbr=None, n_best=1)
        with_values = "".join(f"{name}={value}, " for name, value in zip(varied, values))
        for beam, penalty in itertools.product(sorted(set(beams)), ordered):
            if beam == 1 and penalty != ordered[0]:
                bleu[*values, beam, penalty] = bleu[*values, beam, ordered[0]]
                continue
            tried = replace(plain, beam_size=beam, length_penalty=penalty)
            hypotheses, seconds, cut_off = pairs.translate(tried)
            score = sacrebleu_score(hypotheses, pairs.references, language)
            bleu[*values, beam, penalty] = score
            told = f"{with_values}beam {beam}, length penalty {penalty:g}: BLEU {score:.2f} "
            told += f"({seconds:.1f} s, cut off: {cut_off:,})" if cut_off else f"({seconds:.1f} s)"
            print(told, file=sys.stderr, flush=True)
    return Grid(pairs.split, len(pairs.references), bleu, varied)
