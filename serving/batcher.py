"""Batches of waiting requests, in order: those that come together are computed together."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from models.linear import weights_fixed

logger = logging.getLogger(__name__)


class Full(Exception):
    """More is waiting than allowed."""


@dataclass(eq=False, slots=True)
class Job:
    """A waiting item, and what is to be done with it."""

    key: Hashable
    item: Any
    found: "asyncio.Future[Any]"
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Batcher:
    """Hands items of equal keys to `work`, up to max_batch at once, in one thread.

    A batch starts when it is full or its first item has waited for max_wait seconds. Items that
    come during a batch wait for its end. An item whose request was cancelled, or has failed, is
    left out. If a batch fails, each of its items is tried alone, so that none fails because of
    another.
    """

    work: Callable[[Any, list[Any]], Sequence[Any]]  # (key, items) -> a result for each
    max_batch: int
    max_wait: float
    max_waiting: int  # items; `submit` raises Full beyond
    watch: Callable[[int, float], Any] = lambda size, seconds: None  # called for each batch
    _waiting: deque[Job] = field(default_factory=deque, init=False)
    _came: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    begun: float | None = field(default=None, init=False)  # when the batch under way was

    def __len__(self) -> int:
        """The number of waiting items."""
        return sum(not job.found.done() for job in self._waiting)

    async def submit(self, key: Hashable, items: Sequence[Any]) -> list[Any]:
        """A result for each item. Raises Full at once, and what `work` raises for an item."""
        if len(self) + len(items) > self.max_waiting:
            raise Full
        loop = asyncio.get_running_loop()
        jobs = [Job(key, item, loop.create_future()) for item in items]
        self._waiting.extend(jobs)
        self._came.set()
        try:
            return list(await asyncio.gather(*(job.found for job in jobs)))
        finally:  # if one has failed, nobody waits for the others
            for job in jobs:
                job.found.cancel()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """A scope in which batches are made; a batch under way at its end is finished."""
        fixed = contextlib.ExitStack()
        with ThreadPoolExecutor(1) as thread:
            # A scope of the thread, for its whole life: the weights do not change.
            thread.submit(fixed.enter_context, weights_fixed())
            task = asyncio.create_task(self._make_batches(thread))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait({task})
                thread.submit(fixed.close)

    async def _make_batches(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._came.clear()
            batch = self._next()
            if not batch:
                await self._came.wait()
                continue
            left = batch[0].since + self.max_wait - time.monotonic()
            if len(batch) < self.max_batch and left > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._came.wait()
                continue
            taken = set(batch)
            self._waiting = deque(job for job in self._waiting if job not in taken)
            self.begun = begun = time.monotonic()
            await loop.run_in_executor(thread, self._compute, loop, batch)
            await asyncio.sleep(0)  # a request with a failed item first cancels its others
            self.begun = None
            self.watch(len(batch), time.monotonic() - begun)

    def _next(self) -> list[Job]:
        """The item that has waited longest and is still wanted, and those to go with it."""
        self._waiting = deque(job for job in self._waiting if not job.found.done())
        fitting = (job for job in self._waiting if job.key == self._waiting[0].key)
        return list(itertools.islice(fitting, self.max_batch))

    def _compute(self, loop: asyncio.AbstractEventLoop, batch: list[Job]) -> None:
        """In the thread: compute a batch and give each job its result."""
        try:
            results = self.work(batch[0].key, [job.item for job in batch])
        except BaseException as error:  # a panic of a library in Rust is no Exception
            if len(batch) == 1:
                loop.call_soon_threadsafe(_settle, batch[0].found.set_exception, batch[0], error)
                return
            logger.warning("a batch of %d failed, each is tried alone: %r", len(batch), error)
            for job in batch:
                if not job.found.done():
                    self._compute(loop, [job])
            return
        for job, result in zip(batch, results, strict=True):
            loop.call_soon_threadsafe(_settle, job.found.set_result, job, result)


def _settle(give: Callable[[Any], None], job: Job, what: Any) -> None:
    if not job.found.done():  # its request may have been cancelled meanwhile
        give(what)
