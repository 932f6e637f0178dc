"""Beam sizes against length penalties: BLEU of every pair on one split, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from configs.schema import Beam
from translation.evaluation import EvaluationSet
from translation.metrics import sacrebleu_score


@dataclass(frozen=True, slots=True)
class Grid:
    """sacreBLEU [beam][penalty] on `n` sentences of `split`; a beam of 1 is greedy search."""

    split: str
    n: int
    beams: tuple[int, ...]
    penalties: tuple[float, ...]
    bleu: tuple[tuple[float, ...], ...]

    def best(self) -> tuple[int, float]:
        """Beam size and penalty of the highest BLEU; of equals the smaller beam, then penalty."""
        cells = [
            (-score, beam, penalty)
            for beam, row in zip(self.beams, self.bleu)
            for penalty, score in zip(self.penalties, row)
        ]
        _, beam, penalty = min(cells)
        return beam, penalty

    def markdown(self) -> str:
        """A table with a row for each beam size, aligned for the terminal too, the best bold."""
        best = self.best()
        rows = [["beam", *(f"penalty {penalty:g}" for penalty in self.penalties)]]
        for beam, scores in zip(self.beams, self.bleu):
            cells = [
                f"**{score:.2f}**" if (beam, penalty) == best else f"{score:.2f}"
                for penalty, score in zip(self.penalties, scores)
            ]
            rows.append([str(beam), *cells])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths)) + " |"
            for row in rows
        ]
        lines.insert(1, "| " + " | ".join("-" * (width - 1) + ":" for width in widths) + " |")
        return "\n".join(lines)

    def flags(self) -> str:
        """How the best setting is used: by inference.py, by test.py, and in a config file."""
        beam, penalty = self.best()
        return (
            f"best: beam {beam}, length penalty {penalty:g} ({self.split}, {self.n:,} sentences)\n"
            f"python inference.py --beam_size {beam} --length_penalty {penalty:g}\n"
            f"python test.py --set decode.beam_size={beam} "
            f"--set decode.length_penalty={penalty:g}\n"
            f"decode=DecodeConfig(beam_size={beam}, length_penalty={penalty:g}, "
            f"n_best={min(beam, 5)})"
        )


def tune(
    pairs: EvaluationSet,
    *,
    beams: Sequence[int],
    penalties: Sequence[float],
    progress: Callable[[str], None],
) -> Grid:
    """Search and score every pair of beam size and length penalty; `progress` is told of each.

    A beam of 1 ends with its first hypothesis whatever the penalty is, and is searched once. Larger
    beams are searched for each penalty, since it decides when a search ends and which hypotheses
    are kept.
    """
    beams, penalties = sorted(set(beams)), sorted(set(penalties))
    plain = replace(pairs.translator.decode, search=Beam(), mbr=None, n_best=1)
    rows = []
    for beam in beams:
        scores: list[float] = []
        for penalty in penalties:
            if beam == 1 and scores:
                scores.append(scores[0])
                continue
            pairs.translator.decode = replace(plain, beam_size=beam, length_penalty=penalty)
            hypotheses, seconds = pairs.translate()
            scores.append(sacrebleu_score(hypotheses, pairs.references))
            found = f"BLEU {scores[-1]:.2f} ({seconds:.1f} s)"
            progress(f"beam {beam}, length penalty {penalty:g}: {found}")
        rows.append(tuple(scores))
    return Grid(pairs.split, len(pairs.references), tuple(beams), tuple(penalties), tuple(rows))
