"""A CTranslate2 translator in a process of its own, which never imports torch.

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

    def __init__(self, folder: str, *, device: str, compute_type: str, threads: int) -> None:
        options = {"device": device, "compute_type": compute_type, "intra_threads": threads}
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, _open, (folder, options))

    def translate(self, batch: Sequence[Sequence[str]], **options: Any) -> list[list[str]]:
        """Pieces of sentences -> pieces of the best hypothesis of each."""
        return self._pool.submit(_translate, batch, options).result()

    def close(self) -> None:
        self._pool.shutdown()
