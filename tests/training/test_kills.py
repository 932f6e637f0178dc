"""A few of the kills of `tests/training/kill_harness.py`."""

from pathlib import Path

import pytest
from kill_harness import run_campaign


@pytest.mark.slow
def test_a_run_killed_again_and_again_ends_as_one_never_stopped(tmp_path: Path) -> None:
    report = run_campaign(tmp_path, kills=4, seed=3)
    assert report.kills == 4
    assert len(report.ended) > 1  # more than one way to die
