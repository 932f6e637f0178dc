"""What training minimises: one section for each objective. The formulas stand in
`training/objectives.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from configs.section import Section, number


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy(Section):
    """The cross-entropy of the target tokens, smoothed by optim.label_smoothing."""

    kind: ClassVar[str] = "cross_entropy"
    section: ClassVar[str] = "optim.objective"


@dataclass(frozen=True, slots=True, kw_only=True)
class RDrop(Section):
    """R-Drop (Liang et al. 2021): two passes with different dropout, and what their predictions
    differ by.

    alpha is that of the paper's equation 4. It needs dropout in the model, and twice the time and
    memory of a batch.
    """

    kind: ClassVar[str] = "r_drop"
    section: ClassVar[str] = "optim.objective"
    alpha: float = number(5.0, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCut(Section):
    """SimCut (Gao et al. 2022): a pass, and how far a second one, with tokens cut out on both
    sides, departs from it.

    Each token loses its embedding with probability `cut`. It needs twice the time and memory of a
    batch.
    """

    kind: ClassVar[str] = "sim_cut"
    section: ClassVar[str] = "optim.objective"
    alpha: float = number(3.0, ge=0)
    cut: float = number(0.05, ge=0, lt=1)


Objective = CrossEntropy | RDrop | SimCut
