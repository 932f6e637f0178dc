"""Several batches at once: in processes that share one model's weights, or in threads.

Imports torch late, so that other processes import it while this one does.
"""

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from utils.errors import UserError, one_line

Job = Mapping[str, Any]  # arguments of `search_ids`
Found = list[list[Any]]  # what it returns
Searcher = Any  # a BatchSearch


class Threads:
    """n threads, for an engine that computes outside Python."""

    def __init__(self, n: int) -> None:
        self.n = n

    def map(self, searcher: Searcher, jobs: Sequence[Job]) -> Iterator[tuple[int, Found]]:
        """Yields each job's number and the result of `search_ids`, in their order."""
        with ThreadPoolExecutor(self.n) as pool:
            yield from enumerate(pool.map(lambda job: searcher.search_ids(**job), jobs))


class Processes:
    """n processes of `threads` (None: `threads_of_each`): this one, and others.

    These start at once, or with the first jobs. They share the weights of the first searcher, and
    end with this process, however it ends.
    """

    def __init__(self, n: int, threads: int | None, *, at_once: bool = True) -> None:
        self.n, self.threads = n, threads
        self._others: dict[Connection, BaseProcess] = {}
        if at_once:
            self._begin()

    def map(self, searcher: Searcher, jobs: Sequence[Job]) -> Iterator[tuple[int, Found]]:
        """Raises UserError where a process ends before its job does, or the model is not shared.

        An error of another process is raised in this one.
        """
        import torch
        import torch.multiprocessing  # it can send tensors

        self._begin()
        waiting = deque(enumerate(jobs))
        busy: dict[Connection, deque[int]] = {connection: deque() for connection in self._others}
        n_threads = torch.get_num_threads()
        torch.set_num_threads(self.threads or threads_of_each(self.n))
        try:
            while waiting or any(busy.values()):
                for connection in wait(list(busy), 0 if waiting else None):
                    assert isinstance(connection, Connection)
                    found = self._receive(connection)
                    if isinstance(found, Exception):
                        raise found
                    if found is None:
                        self._send(connection, searcher)
                        self._ready.add(connection)
                    else:
                        yield busy[connection].popleft(), found
                for connection in self._ready:
                    while waiting and len(busy[connection]) < 2:  # one more, to start at once
                        number, job = waiting.popleft()
                        self._send(connection, job)
                        busy[connection].append(number)
                if waiting:
                    number, job = waiting.popleft()
                    yield number, searcher.search_ids(**job)
        except BaseException:  # late answers would be taken for those of the next jobs
            for process in self._others.values():
                process.kill()
            self._others.clear()
            raise
        finally:
            torch.set_num_threads(n_threads)

    def _begin(self) -> None:
        if self._others:
            return
        self._ready: set[Connection] = set()  # those that have the searcher
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # starting it later would unblock SIGINT
        # The processes inherit the blocked Ctrl-C: this process ends them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(self.n - 1):
                here, there = context.Pipe()
                process = context.Process(
                    target=_work, args=(there, self.n, self.threads), daemon=True
                )
                process.start()
                there.close()
                self._others[here] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _send(self, connection: Connection, what: Any) -> None:
        try:
            connection.send(what)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the process has ended; receiving from it tells why
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"--workers {self.n} cannot share the model ({one_line(error)}): give fewer, or "
                "allow more open files (ulimit -n) or shared memory (docker run --shm-size), or a "
                "shorter TMPDIR"
            ) from error

    def _receive(self, connection: Connection) -> Any:
        try:
            return connection.recv()
        except (EOFError, ConnectionResetError):
            process = self._others[connection]
            process.join()
            code = process.exitcode or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise UserError(
                f"one of the processes of --workers {how}: if the memory was too small, give "
                "fewer --workers or a smaller --set decode.batch_size"
            ) from None


Workers = Threads | Processes


def threads_of_each(n: int) -> int:
    """The CPU threads of each of n workers."""
    import torch

    return max(1, torch.get_num_threads() // n)


def _work(connection: Connection, n: int, threads: int | None) -> None:
    """Receive the searcher, then search each job, until the other side has gone."""
    import torch
    import torch.multiprocessing

    from models.linear import weights_fixed
    from utils.machine import IN_A_SEARCH, keep_freed_memory

    keep_freed_memory(IN_A_SEARCH)
    torch.set_num_threads(threads or threads_of_each(n))
    gone = contextlib.suppress(BrokenPipeError, ConnectionResetError)
    # The reader empties the pipe during a send: otherwise both sides might wait in a send.
    with gone, weights_fixed(), ThreadPoolExecutor(1) as reader:
        connection.send(None)
        try:
            searcher: Searcher = connection.recv()
            coming = reader.submit(connection.recv)
            while True:
                job = coming.result()
                coming = reader.submit(connection.recv)
                connection.send(searcher.search_ids(**job))
        except Exception as error:
            connection.send(error)
