"""Tunes beam size and length penalty: BLEU of every pair on one split, and the best pair."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.schema import Beam
from translation.evaluation import EvaluationSet
from translation.metrics import sacrebleu_score
from utils.tables import markdown_table


@dataclass(frozen=True, slots=True)
class Grid:
    """sacreBLEU of (beam size, length penalty) on `n` sentences of `split`."""

    split: str
    n: int
    bleu: dict[tuple[int, float], float]

    def best(self) -> tuple[int, float]:
        """Beam size and penalty of the highest BLEU; if equal, the smaller beam, then penalty."""
        return min(self.bleu, key=lambda cell: (-self.bleu[cell], *cell))

    def markdown(self) -> str:
        """A table with a row for each beam size, the best bold."""
        beams, penalties = (sorted(set(side)) for side in zip(*self.bleu))
        shown = {cell: f"{bleu:.2f}" for cell, bleu in self.bleu.items()}
        shown[self.best()] = f"**{shown[self.best()]}**"
        header = ["beam", *(f"penalty {penalty:g}" for penalty in penalties)]
        rows = [[beam, *(shown[beam, penalty] for penalty in penalties)] for beam in beams]
        return markdown_table(header, rows)

    def flags(self, models: Sequence[str | Path] = (), overrides: Sequence[str] = ()) -> str:
        """How to use the best setting: in inference.py, in test.py, and in a config file.

        models, overrides: the values of --model_path and --set. If these set more of decode, the
        config file's line is left out, since it would lack that.
        """
        beam, penalty = self.best()
        named = ["--model_path", *map(str, models)] if models else []

        def command(script: str, *flags: str, of: str = "") -> str:
            sets = (word for each in overrides if each.startswith(of) for word in ("--set", each))
            return shlex.join(["python", script, *flags, *named, *sets])

        alpha = repr(penalty).removesuffix(".0")
        as_flags = "--beam_size", str(beam), "--length_penalty", alpha
        as_sets = "--set", f"decode.beam_size={beam}", "--set", f"decode.length_penalty={alpha}"
        lines = [
            f"best: beam {beam}, length penalty {penalty:g} ({self.split}, {self.n:,} sentences)",
            command("inference.py", *as_flags, of="decode."),
            command("test.py", *as_sets),
        ]
        if not any(each.startswith("decode.") for each in overrides):
            fields = f"beam_size={beam}, length_penalty={penalty!r}, n_best={min(beam, 5)}"
            lines.append(f"decode=replace(base.decode, {fields})")
        return "\n".join(lines)


def tune(pairs: EvaluationSet, *, beams: Sequence[int], penalties: Sequence[float]) -> Grid:
    """Search and score every pair of beam size and length penalty; reports to standard error.

    A beam of 1 is greedy search, which ends with its first hypothesis whatever the penalty, and is
    run once. Larger beams are run for each penalty, since it decides when a search ends and which
    hypotheses are kept.
    """
    language = pairs.loaded.config.data.tgt_lang
    plain = replace(pairs.translator.decode, search=Beam(), mbr=None, n_best=1)
    first, *others = sorted(set(penalties))
    bleu: dict[tuple[int, float], float] = {}
    for beam in sorted(set(beams)):
        for penalty in (first, *others):
            if beam == 1 and penalty != first:
                bleu[beam, penalty] = bleu[beam, first]
                continue
            decode = replace(plain, beam_size=beam, length_penalty=penalty)
            hypotheses, seconds = pairs.translate(decode)
            score = bleu[beam, penalty] = sacrebleu_score(hypotheses, pairs.references, language)
            told = f"beam {beam}, length penalty {penalty:g}: BLEU {score:.2f} ({seconds:.1f} s)"
            print(told, file=sys.stderr, flush=True)
    return Grid(pairs.split, len(pairs.references), bleu)
