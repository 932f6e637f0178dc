"""Progress bars that leave nothing behind in the operating system."""

import threading

from tqdm import tqdm


class Bar(tqdm):
    """A bar of tqdm's, locked for the threads of this process alone.

    tqdm's own lock is a system semaphore, which a killed process leaves behind. Other bars of the
    program keep it: `process_map` sends it to its processes.
    """


Bar.set_lock(threading.RLock())
