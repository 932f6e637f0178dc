"""docs/notebook.py, executed with models that are trained for a moment."""

import re
import sys
from pathlib import Path

import pytest
from conftest import ROOT, TINY

NOTEBOOK = (ROOT / "docs/notebook.py").read_text("utf-8")


def test_every_cell_of_the_notebook_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = f"SETTINGS = {TINY!r} + ['train.max_steps=2', 'data.cache_dir={tmp_path}/cache']\n"
    given += f"RUNS, N_SENTENCES = {str(tmp_path / 'runs')!r}, 4\n"
    cells = re.split(r"^# %%", NOTEBOOK, flags=re.MULTILINE)
    [parameters] = [i for i, cell in enumerate(cells) if cell.startswith(' tags=["parameters"]')]
    cells[parameters] += given
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec("# %%".join(cells), {})
    out = capsys.readouterr().out
    assert "(2, 2, " in out  # attention by layer and head
    assert re.findall(r"(sinusoidal|rope): .* BLEU", out) == ["sinusoidal", "rope"] * 2
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"sinusoidal", "rope"}


def test_the_notebook_is_in_the_percent_format() -> None:
    head, *cells = re.split(r"^# %%", NOTEBOOK, flags=re.MULTILINE)
    assert re.fullmatch(r"(#.*\n)+\n", head)
    markdown = [cell for cell in cells if cell.startswith(" [markdown]\n")]
    assert all(line.startswith("#") for cell in markdown for line in cell.split("\n")[1:] if line)
    assert len(cells) > len(markdown) > 5
