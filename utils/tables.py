"""Tables for readers (Markdown) and for programs (CSV)."""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from utils.files import write_bytes


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table: the first column is aligned left, the others right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    cells = [[str(cell).replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write a CSV file of the rows, packed if its name ends in .gz.

    Its columns are the keys of the longest row, which has all keys.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, max(map(list, rows), key=len), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    return write_bytes(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, plain or .gz."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
