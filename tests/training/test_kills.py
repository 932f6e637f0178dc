"""A few of the kills of `tests/training/kill_harness.py`."""

from pathlib import Path

import pytest
from kill_harness import run_campaign


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kills", "seed", "auto", "processes", "variant"),  # seeds that cut torch.save
    [(3, 18435, False, 1, "all"), (2, 355, True, 1, "plain"), (1, 1, False, 2, "plain")],
)
def test_a_run_killed_again_and_again_ends_as_one_never_stopped(
    tmp_path: Path, kills: int, seed: int, auto: bool, processes: int, variant: str
) -> None:
    report = run_campaign(
        tmp_path, kills=kills, seed=seed, auto=auto, processes=processes, variants=[variant]
    )
    assert report.kills == kills
    assert report.alike == report.runs
    assert max(report.updates) > 0  # a checkpoint was there
    assert not auto or report.fell["before the first checkpoint"]
    assert kills == 1 or len(report.ended) > 1  # more than one way to die
