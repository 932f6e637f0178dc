"""A few of the kills of `tests/kill_harness.py`."""

from __future__ import annotations

from pathlib import Path

from kill_harness import KILLS_OF_A_RUN, run_campaign


def test_a_run_killed_again_and_again_ends_as_one_never_stopped(tmp_path: Path) -> None:
    report = run_campaign(tmp_path, kills=KILLS_OF_A_RUN, seed=3)
    assert report.kills == KILLS_OF_A_RUN
    assert len(report.ended) > 1  # more than one way to die
    assert max(report.updates) > 0
