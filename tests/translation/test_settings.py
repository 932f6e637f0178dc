"""How many translations the scripts ask for."""

from typing import Any

import pytest

from configs.schema import Beam, Config, DecodeConfig, DiverseBeam, Sampling, Search
from translation.settings import config_change

BEST = {"best_alone": True}
SCORED = {"scoring": True}


@pytest.mark.parametrize(
    ("search", "mbr", "given", "asked", "n_best"),
    [
        (Beam(), None, [], {}, 8),
        (Beam(), None, ["decode.beam_size=4"], {}, 4),
        (Beam(), None, [], BEST, 1),
        (DiverseBeam(), None, [], SCORED, 1),
        (Beam(), "chrf", [], SCORED, 8),
        (Sampling(), None, [], {}, 64),
        # One sample stands for the model; the likeliest of many does not.
        (Sampling(), None, [], BEST, 1),
        (Sampling(), None, [], SCORED, 1),
        (Sampling(), "chrf", [], SCORED, 64),
        (Sampling(), "chrf", ["decode.n_best=9"], SCORED, 9),
    ],
)
def test_as_many_are_asked_for_as_are_used(
    search: Search, mbr: Any, given: list[str], asked: dict[str, bool], n_best: int
) -> None:
    most = 64 if isinstance(search, Sampling) else 8
    decode = DecodeConfig(search=search, beam_size=8, n_best=most, mbr=mbr)
    change = config_change(None, None, given, **asked)
    assert change(Config(decode=decode)).decode.n_best == n_best
