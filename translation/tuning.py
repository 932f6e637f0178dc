"""Beam sizes against length penalties: BLEU of every pair on one split, as a table, and the best of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from configs.schema import Beam, DecodeConfig
from data.cache import TokenizedSplit
from translation.evaluation import translate_split
from translation.metrics import sacrebleu_score
from translation.translator import Translator


@dataclass(frozen=True, slots=True)
class Grid:
    """sacreBLEU [beam][penalty] of greedy search (a beam of 1) and beam search on `n` sentences of
    `split`.
    """

    split: str
    n: int
    beams: tuple[int, ...]
    penalties: tuple[float, ...]
    bleu: tuple[tuple[float, ...], ...]

    def best(self) -> tuple[int, float]:
        """The beam size and the penalty of the highest BLEU; of equals the smaller beam, then the
        smaller penalty.
        """
        cells = [
            (-score, beam, penalty)
            for beam, row in zip(self.beams, self.bleu)
            for penalty, score in zip(self.penalties, row)
        ]
        _, beam, penalty = min(cells)
        return beam, penalty

    def markdown(self) -> str:
        """A table with a row for each beam size, aligned for the terminal too; the best figure is
        bold.
        """
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
            f"python test.py --set decode.beam_size={beam} --set decode.length_penalty={penalty:g}\n"
            f"decode=DecodeConfig(beam_size={beam}, length_penalty={penalty:g}, n_best={min(beam, 5)})"
        )


def tune(
    translator: Translator,
    ids: TokenizedSplit,
    references: Sequence[str],
    *,
    split: str,
    beams: Sequence[int],
    penalties: Sequence[float],
    progress: Callable[[str], None] = lambda line: None,
) -> Grid:
    """Search and score every pair of a beam size and a length penalty; `progress` is told of each
    as it is done.

    A beam of 1 ends with its first hypothesis whatever the penalty is, and is searched once. Larger
    beams are searched for each penalty, since it decides when a search ends and which hypotheses
    are kept.
    """
    beams, penalties = sorted(set(beams)), sorted(set(penalties))
    rows = []
    for beam in beams:
        scores: list[float] = []
        for penalty in penalties:
            if beam == 1 and scores:
                scores.append(scores[0])
                continue
            translator.decode = _setting(translator.decode, beam, penalty)
            hypotheses, seconds = translate_split(translator, ids, greedy=False)
            scores.append(sacrebleu_score(hypotheses, references))
            progress(
                f"beam {beam}, length penalty {penalty:g}: BLEU {scores[-1]:.2f} ({seconds:.1f} s)"
            )
        rows.append(tuple(scores))
    return Grid(split, len(references), tuple(beams), tuple(penalties), tuple(rows))


def _setting(decode: DecodeConfig, beam: int, penalty: float) -> DecodeConfig:
    return replace(
        decode, search=Beam(), mbr=None, beam_size=beam, length_penalty=penalty, n_best=1
    )
