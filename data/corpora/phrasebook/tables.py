"""Reads tables written as text: entries parted by line ends or `;`, fields by `/`, translations by
`=`.
"""

from __future__ import annotations

Text = tuple[str, str]  # French and English of a part of a sentence, not spelled yet


def entries(table: str) -> list[str]:
    return [entry.strip() for entry in table.replace("\n", ";").split(";") if entry.strip()]


def rows(table: str) -> list[list[str]]:
    """`chat/m/cat; vache/f/cow` → [[chat, m, cat], [vache, f, cow]]."""
    return [[cell.strip() for cell in entry.split("/")] for entry in entries(table)]


def pairs(table: str) -> tuple[Text, ...]:
    """`faim=hungry; soif=thirsty` → ((faim, hungry), (soif, thirsty)). A lone `=` is a choice of no
    words.
    """
    found = []
    for entry in entries(table):
        fr, _, en = entry.partition("=")
        found.append((fr.strip(), en.strip()))
    return tuple(found)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())
