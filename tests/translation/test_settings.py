"""How many translations the scripts ask for."""

from typing import Any

import pytest

from configs.schema import Beam, Config, DecodeConfig, DiverseBeam, Sampling, Search
from translation.settings import config_change
from utils.errors import UserError

BEST = {"best_alone": True}


@pytest.mark.parametrize(
    ("search", "mbr", "given", "asked", "n_best"),
    [
        (Beam(), None, [], {}, 8),
        (Beam(), None, ["decode.beam_size=4"], {}, 4),
        (Beam(), None, [], BEST, 1),
        (DiverseBeam(strength=0.9), None, [], BEST, 1),
        (Beam(), "chrf", [], BEST, 8),
        (Sampling(), None, [], {}, 64),
        # One sample stands for the model; the likeliest of many does not.
        (Sampling(), None, [], BEST, 1),
        (Sampling(), "chrf", [], BEST, 64),
        (Sampling(), "chrf", ["decode.n_best=9"], BEST, 9),
    ],
)
def test_as_many_are_asked_for_as_are_used(
    search: Search, mbr: Any, given: list[str], asked: dict[str, Any], n_best: int
) -> None:
    most = 64 if isinstance(search, Sampling) else 8
    decode = DecodeConfig(search=search, beam_size=8, n_best=most, mbr=mbr)
    for named in (None, search.kind):  # to name the kind that it has changes nothing
        change = config_change(None, named, given, **asked)
        changed = change(Config(decode=decode)).decode
        assert (changed.n_best, changed.search) == (n_best, search)


def test_longer_text_may_be_scored_than_a_batch_of_training_held() -> None:
    change = config_change(None, None, ["data.max_len=5000"], settable=("data.", "decode."))
    assert change(Config()).data.max_len == 5000


def test_what_would_be_of_no_use_is_refused() -> None:
    with pytest.raises(UserError, match="greedy search finds one"):
        config_change(None, "greedy", ["decode.mbr=chrf"])
    with pytest.raises(UserError, match="one translation of each line is used"):
        config_change(None, None, ["decode.n_best=2"], **BEST)(Config())
    sampled = DecodeConfig(search=Sampling(), beam_size=1, n_best=1)
    for decode, given in (
        (DecodeConfig(n_best=5), ["decode.n_best=1"]),
        (DecodeConfig(n_best=1), []),
        (sampled, []),
    ):
        change = config_change(None, None, [*given, "decode.mbr=chrf"])
        with pytest.raises(UserError, match=r"n_best = 1: raise it"):
            change(Config(decode=decode))
    trained = Config(decode=DecodeConfig(mbr="chrf"))
    narrow = config_change(None, "beam", ["decode.beam_size=1"])
    with pytest.raises(UserError, match=r"beam_size = 1 and decode.n_best = 1: raise both"):
        narrow(trained)
    for search, given in ((None, ["decode.search=sample"]), ("both", [])):
        change = config_change(None, search, [*given, "decode.beam_size=7"], best_alone=True)
        with pytest.raises(UserError, match=r"decode\.beam_size: sampling has none"):
            change(Config(decode=DecodeConfig() if given else sampled))
    for none in ("None", "null"):
        assert config_change(None, "greedy", [f"decode.mbr={none}"])(trained).decode.mbr is None
