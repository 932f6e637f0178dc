"""A CTranslate2 translator in a process of its own, where torch computes nothing.

Beside torch in one process it slows torch by a third from its first translation on (two OpenMP
runtimes), and its own speed would be another than its users see.
"""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

_translator: Any = None  # in the process that holds it


def _open(folder: str, options: dict[str, Any]) -> None:
    global _translator
    library: Any = importlib.import_module("ctranslate2")
    _translator = library.Translator(folder, inter_threads=1, **options)


def _translate(batch: Sequence[Sequence[str]], options: dict[str, Any]) -> list[list[str]]:
    return [result.hypotheses[0] for result in _translator.translate_batch(batch, **options)]


class TranslatorProcess:
    """translate_batch of a converted model in `folder`, somewhere else. To be closed."""

    def __init__(self, folder: str, **options: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, _open, (folder, options))
        self.close = self._pool.shutdown

    def translate(self, batch: Sequence[Sequence[str]], **options: Any) -> list[list[str]]:
        """Pieces of sentences -> pieces of the best hypothesis of each."""
        return self._pool.submit(_translate, batch, options).result()
