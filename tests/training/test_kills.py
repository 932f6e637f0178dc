"""A few of the kills of `tests/training/kill_harness.py`."""

from pathlib import Path

import pytest
from kill_harness import run_campaign


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "auto", "processes", "variant"),
    [(3, False, 1, "all"), (2, True, 1, "plain"), (1, False, 2, "plain")],
)
def test_a_run_killed_again_and_again_ends_as_one_never_stopped(
    tmp_path: Path, kills: int, auto: bool, processes: int, variant: str
) -> None:
    report = run_campaign(
        tmp_path, kills=kills, seed=3, auto=auto, processes=processes, variants=[variant]
    )
    assert report.kills == kills
    assert report.alike == report.runs
    assert kills == 1 or len(report.ended) > 1  # more than one way to die
