"""Tables for readers (Markdown) and for programs (CSV)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from utils.files import write_text


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table: the first column to the left, the others to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """A CSV file with a header line, written as `write_text` does."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return write_text(path, text.getvalue())
