"""The schemes that are drawn: fixed, before any training, or of a trained run; with what their
pictures are called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from configs.schema import ModelConfig
from models.positional_encodings.base import Kind, PositionScheme, Role, Side
from pictures import arrays as arrays
from utils.errors import UserError

if TYPE_CHECKING:
    from translation.loading import LoadedRun

State = Literal["fixed", "untrained", "trained"]
SIDES: tuple[Side, ...] = get_args(Side)
STACKS: tuple[Kind, ...] = ("encoder", "decoder")


@dataclass(frozen=True)
class Subject:
    """A scheme to draw, in a model of this shape; `about` ends its titles (which run, which epoch)."""

    name: str
    scheme: PositionScheme
    model: ModelConfig
    trained: bool
    about: str = ""

    @property
    def state(self) -> State:
        """A scheme without parameters is fixed, whether its model was trained or not."""
        if not any(True for _ in self.scheme.parameters()):
            return "fixed"
        return "trained" if self.trained else "untrained"

    @property
    def label(self) -> str:
        return self.name if self.state == "fixed" else f"{self.name}, {self.state}"

    def n_positions(self, wanted: int | None, default: int) -> int:
        """`wanted`, or `default` as far as the scheme knows positions. Raises UserError for more
        than it knows.
        """
        bounds = [self.scheme.max_length(side) for side in SIDES]
        known = min((bound for bound in bounds if bound is not None), default=None)
        if known is not None and wanted is not None and wanted > known:
            raise UserError(f"--positions {wanted}: the {self.name} encoding has {known}")
        return wanted or min(default, known or default)

    def tables(self, n: int) -> dict[str, np.ndarray]:
        """What is added to the embeddings of n tokens, by side, or once under "" where the sides
        have one.
        """
        one = self.scheme.input("source") is self.scheme.input("target")
        made = {
            side: arrays.input_table(self.scheme, side, self.model.d_model, n)
            for side in SIDES[: 1 if one else 2]
        }
        return {"" if one else side: table for side, table in made.items() if table is not None}

    def turns(self, n: int, role: Role = "query") -> dict[str, np.ndarray]:
        """The rotations [H,n,P] of n tokens by stack, or once under "" where the stacks have the
        same.
        """
        made: dict[str, np.ndarray] = {}
        for kind, side in zip(STACKS, SIDES):
            turned = arrays.rotation(
                self.scheme.attention(kind, 0),
                arrays.positions_of(self.scheme, side, n),
                n_heads=self.model.n_heads,
                head_dim=self.model.d_model // self.model.n_heads,
                role=role,
            )
            if turned is not None:
                made[kind] = turned
        same = len(made) == 2 and np.array_equal(made["encoder"], made["decoder"])
        return {"": made["encoder"]} if same else made


def fresh_subject(name: str, model: ModelConfig, about: str = "") -> Subject:
    """The scheme of model.position as a training begins with it."""
    return Subject(name, arrays.fresh_scheme(model), model, trained=False, about=about)


def trained_subject(loaded: LoadedRun) -> Subject:
    """The scheme of a run's model."""
    model = loaded.config.model
    about = f" ({loaded.run.path.name}, epoch {loaded.epoch})"
    return Subject(model.position.kind, loaded.model.scheme.cpu(), model, trained=True, about=about)


def need_tables(subject: Subject, n: int) -> dict[str, np.ndarray]:
    """`Subject.tables`; raises UserError where there are none."""
    tables = subject.tables(n)
    if not tables:
        raise UserError(
            f"the position scheme {subject.name!r} adds nothing to embeddings, so there is no table to draw; "
            "choose one that does, as in --position sinusoidal or --position learnable"
        )
    return tables


def need_turns(subject: Subject, n: int) -> dict[str, np.ndarray]:
    """`Subject.turns`; raises UserError where there are none."""
    turns = subject.turns(n)
    if not turns:
        raise UserError(
            f"the position scheme {subject.name!r} turns no queries and keys; choose one that does, as in "
            "--position rope"
        )
    return turns


def file_name(*parts: str) -> str:
    """The parts that are not empty, joined."""
    return "_".join(part for part in parts if part)


def place_of(place: str, kind: str) -> str:
    """ ", source side" or ", encoder"; nothing for what is the same in both places."""
    return f", {place}{kind}" if place else ""
