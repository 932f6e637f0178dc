"""What the tokenizers share: the check of incoming text, and the file that says which kind a saved
folder holds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from utils.errors import UserError
from utils.files import write_text

KIND_FILE = "tokenizer_kind.json"


def require_unicode(texts: Sequence[str]) -> None:
    """Raises UserError for text with lone surrogates: what Python makes of input bytes that are not
    UTF-8.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            shown = ascii(text[max(0, error.start - 20) : error.start + 20])
            raise UserError(
                f"text that is not valid Unicode: {shown}; give the input as UTF-8"
            ) from None


def begin_save(folder: Path) -> None:
    """Make `folder`. Until `finish_save` it counts as damaged, so that a crash half-way is seen on
    loading.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / KIND_FILE).unlink(missing_ok=True)


def finish_save(folder: Path, kind: str, fingerprint: str) -> None:
    """Write the kind file, in one step and after all the others."""
    write_text(
        folder / KIND_FILE, json.dumps({"kind": kind, "fingerprint": fingerprint}, indent=2) + "\n"
    )


def read_kind(folder: Path) -> tuple[str, str]:
    """(kind, fingerprint) of a saved folder. Raises UserError where there is none or it is damaged."""
    path = folder / KIND_FILE
    if not folder.is_dir():
        raise UserError(
            f"no tokenizer folder {str(folder)!r}: give the folder that the training run saved"
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return str(data["kind"]), str(data["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"the tokenizer in {str(folder)!r} is incomplete: {KIND_FILE} is missing or damaged; save it again"
        ) from None
