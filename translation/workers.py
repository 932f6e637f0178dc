"""Several batches at once: in processes that share the memory of one model, or in threads."""

import contextlib
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch
import torch.multiprocessing

from configs.schema import DecodeConfig
from models.decoding.hypothesis import Hypothesis
from utils.errors import UserError

Job = Mapping[str, Any]  # arguments of `search_ids`
Found = list[list[Hypothesis]]


class Searcher(Protocol):
    """A Translator, as far as it matters here."""

    decode: DecodeConfig

    def search_ids(self, sources: Sequence[Sequence[int]], *, greedy: bool) -> Found: ...


class Workers(Protocol):
    def map(self, searcher: Searcher, jobs: Sequence[Job]) -> Iterator[tuple[int, Found]]:
        """The number of each job with what `search_ids` finds, as it is found."""


class Threads:
    """n threads, for an engine that computes outside of Python."""

    def __init__(self, n: int) -> None:
        self.n = n

    def map(self, searcher: Searcher, jobs: Sequence[Job]) -> Iterator[tuple[int, Found]]:
        with ThreadPoolExecutor(self.n) as pool:
            yield from enumerate(pool.map(lambda job: searcher.search_ids(**job), jobs))


class Processes:
    """n processes of `threads` CPU threads each, begun with the first jobs.

    They share the model of the first searcher, and end with this process, whatever ends it.
    """

    def __init__(self, n: int, threads: int) -> None:
        self.n, self.threads = n, threads
        self._processes: dict[Connection, BaseProcess] = {}

    def map(self, searcher: Searcher, jobs: Sequence[Job]) -> Iterator[tuple[int, Found]]:
        """Raises UserError where a process ends before its job does."""
        busy: dict[Connection, int] = {}
        waiting = deque(enumerate(jobs))
        try:
            idle = self._begun(searcher)
            while waiting or busy:
                while waiting and idle:
                    number, job = waiting.popleft()
                    busy[connection := idle.pop()] = number
                    self._talk(connection, connection.send, (searcher.decode, job))
                ready = wait(list(busy))
                for connection in [each for each in busy if each in ready]:
                    found = self._talk(connection, connection.recv)
                    if isinstance(found, UserError):
                        raise found
                    yield busy.pop(connection), found
                    idle.append(connection)
        finally:
            if busy:  # their answers would be taken for those of the next jobs
                for process in self._processes.values():
                    process.kill()
                self._processes.clear()

    def _begun(self, searcher: Searcher) -> list[Connection]:
        context = torch.multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # beginning it lets SIGINT through again
        # They inherit that Ctrl-C is none of theirs: this process ends them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            while len(self._processes) < self.n:
                here, there = context.Pipe()
                arguments = there, searcher, self.threads
                process = context.Process(target=_work, args=arguments, daemon=True)
                process.start()
                there.close()
                self._processes[here] = process
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return list(self._processes)

    def _talk(self, connection: Connection, say: Any, *what: Any) -> Any:
        try:
            return say(*what)
        except (EOFError, OSError):
            process = self._processes[connection]
            process.join()
            code = process.exitcode or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            raise UserError(
                f"one of the processes of --workers {how}: if the memory did not suffice, give "
                "fewer --workers or a smaller --set decode.batch_size"
            ) from None


def _work(connection: Connection, searcher: Searcher, threads: int) -> None:
    """Search what comes until the other side has gone."""
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            searcher.decode, job = connection.recv()
            try:
                found: Any = searcher.search_ids(**job)
            except UserError as error:
                found = error
            connection.send(found)
