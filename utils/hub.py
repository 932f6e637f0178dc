"""Files of the Hugging Face hub, from the cache on this machine or fetched into it once."""

import contextlib
import fnmatch
import logging
import re
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

from utils.errors import UserError, one_line

logger = logging.getLogger(__name__)

ANSWER_S = 5.0  # for the hub's first answer: its own client retries for far longer


def is_hub_name(text: str) -> bool:
    """Whether a text can be a hub name, NAME or OWNER/NAME. A relative path may look the same."""
    part = r"\w(?:[\w.-]{,94}\w)?"
    return re.fullmatch(rf"(?!_|.*(--|\.\.)){part}(/{part})?", text, re.ASCII) is not None


def fetch(
    repo: str,
    required: Sequence[str],
    optional: Sequence[str] = (),
    *,
    what: str,
    remedy: str,
    **place: str,
) -> Path:
    """The folder of the hub's cache with the files of `repo`.

    Raises UserError if they are not available, within seconds if no hub answers.

    Args:
        repo: its name, OWNER/NAME.
        required: patterns that each need a file; of "a|b" the first that the hub has.
        optional: patterns of files to take along if the hub has them.
        what: the name of the files in messages.
        remedy: the end of the error's message: what the user can do instead.
        place: repo_type and revision, if not the hub's defaults.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    def snapshot(there: Sequence[str] | None, *, whole: bool = True) -> Path:
        """there: the names of the hub's files; None looks into the cache alone.

        whole: nothing that the hub is known to have is missing, be it optional.
        """
        chosen = [_first_there(pattern, there) for pattern in required]
        wanted: dict[str, Any] = {"allow_patterns": [*chosen, *optional], **place}
        try:
            folder = Path(snapshot_download(repo, local_files_only=there is None, **wanted))
        except LocalEntryNotFoundError as error:
            if whole or not hasattr(error, "snapshot_path"):
                raise
            folder = Path(error.snapshot_path)
        lacking = [r for r in required if not any(any(folder.glob(p)) for p in r.split("|"))]
        if lacking:
            raise FileNotFoundError(f"{repo} lacks {', '.join(lacking)}")
        return folder

    with contextlib.suppress(Exception):  # not in the cache, or a download that was cut off
        return snapshot(None)
    try:
        if constants.HF_HUB_OFFLINE:
            raise ConnectionError("HF_HUB_OFFLINE is set")
        # A warning, so that every script shows it: a download must not come as a surprise.
        logger.warning("fetching %s from the Hugging Face hub (%s), once", what, constants.ENDPOINT)
        info = _within(ANSWER_S, lambda: HfApi().repo_info(repo, timeout=ANSWER_S, **place))
        return snapshot([file.rfilename for file in info.siblings or ()])
    except Exception as error:  # the hub's client raises many kinds; they all mean the same
        with contextlib.suppress(Exception):
            folder, said = snapshot(None, whole=False), "optional files may be missing"
            logger.warning("%s as in the cache (%s): %s", what, one_line(error), said)
            return folder
        reason = one_line(error)
        if isinstance(error, RepositoryNotFoundError):  # without the end of the client's text
            reason = f"the hub has no {repo} for you: check the name, or ask for access there and "
            reason += "log in (hf auth login)"
        raise UserError(
            f"{what} is not in the hub's cache and cannot be fetched ({reason}): {remedy}"
        ) from error


def _first_there(choice: str, names: Sequence[str] | None) -> str:
    """The first of the patterns "a|b" that fits one of `names`, else the first."""
    patterns = choice.split("|")
    return next((p for p in patterns if fnmatch.filter(names or (), p)), patterns[0])


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """The result of a call that may hang without a timeout, as name resolution does.

    Raises TimeoutError.
    """
    answer: futures.Future[Any] = futures.Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if futures.wait([answer], seconds).not_done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return answer.result()
