"""A CTranslate2 translator in a process of its own, where torch computes nothing.

Beside torch in one process it slows torch by a third from its first translation on (two OpenMP
runtimes), and its own speed would be another than its users see.
"""

import importlib
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

_translator: Any = None  # in the process that holds it


def _open(folder: str, options: dict[str, Any]) -> None:
    global _translator
    _translator = importlib.import_module("ctranslate2").Translator(folder, **options)


def start(folder: str, **options: Any) -> ProcessPoolExecutor:
    """The process that holds the converted model of `folder`, to be shut down."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, _open, (folder, options))


def translate(batch: Sequence[Sequence[str]], options: dict[str, Any]) -> list[list[str]]:
    """Pieces of sentences -> pieces of the best hypothesis of each, in the process of `start`."""
    return [result.hypotheses[0] for result in _translator.translate_batch(batch, **options)]
