"""Progress bars that leave nothing behind in the operating system."""

import threading
from typing import Any

from tqdm import tqdm


def progress_bar(**options: Any) -> "tqdm[Any]":
    """`tqdm(**options)`, locked for the threads of this process alone.

    tqdm's own lock is a system semaphore, which a killed process leaves behind.
    """
    tqdm.set_lock(threading.RLock())
    return tqdm(**options)
