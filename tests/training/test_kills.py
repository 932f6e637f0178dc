"""A few of the kills of `tests/training/kill_harness.py`."""

from pathlib import Path

import pytest
from kill_harness import run_campaign


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "auto"), [(4, False), (2, True)])
def test_a_run_killed_again_and_again_ends_as_one_never_stopped(
    tmp_path: Path, kills: int, auto: bool
) -> None:
    report = run_campaign(tmp_path, kills=kills, seed=3, auto=auto)
    assert report.kills == kills
    assert len(report.ended) > 1  # more than one way to die
