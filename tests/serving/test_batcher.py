"""What comes together is computed together, in order; what is cancelled is not computed."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from serving.batcher import Batcher, Full


class Work:
    """Doubles its items, the first batch not before it may; keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[str]]] = []
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, key: str, items: list[str]) -> list[str]:
        self.batches.append((key, items))
        self.begun.set()
        assert self.may_end.wait(10)
        if "bad" in items:
            raise ValueError(items)
        return [2 * item for item in items]


def with_first_under_way(
    then: Callable[[Batcher, Work, "asyncio.Task[list[str]]"], Awaitable[Any]],
) -> Work:
    """Runs `then` while a batch of one is at work."""
    work = Work()

    async def run() -> None:
        batcher = Batcher(work, max_batch=3, max_wait=0, max_waiting=5)
        async with batcher.running():
            first = asyncio.create_task(batcher.submit("a", ["0"]))
            await asyncio.to_thread(work.begun.wait, 10)
            await then(batcher, work, first)
            assert await first == ["00"]

    asyncio.run(run())
    return work


def test_what_waits_goes_together_with_its_like_and_in_order() -> None:
    async def then(batcher: Batcher, work: Work, first: Any) -> None:
        asked = [("a", ["1", "2"]), ("b", ["3"]), ("a", ["4", "5"])]
        tasks = [asyncio.create_task(batcher.submit(*each)) for each in asked]
        await asyncio.sleep(0)
        assert len(batcher) == 5
        work.may_end.set()
        assert await asyncio.gather(*tasks) == [["11", "22"], ["33"], ["44", "55"]]

    found = with_first_under_way(then).batches
    assert found == [("a", ["0"]), ("a", ["1", "2", "4"]), ("b", ["3"]), ("a", ["5"])]


def test_a_batch_begins_when_it_is_full_or_its_first_item_has_waited() -> None:
    batches: list[list[int]] = []

    async def run(n: int, pause: float, **how: Any) -> None:
        batcher = Batcher(lambda key, items: batches.append(items) or items, max_waiting=20, **how)
        async with batcher.running():
            tasks = []
            for item in range(n):
                tasks.append(asyncio.create_task(batcher.submit("a", [item])))
                await asyncio.sleep(pause)
            await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(run(2, 0.01, max_batch=2, max_wait=60), 10))
    assert batches.pop() == [0, 1]
    asyncio.run(run(10, 0.02, max_batch=20, max_wait=0.05))
    assert len(batches[0]) < 10


def test_a_cancelled_request_is_left_out_and_makes_room() -> None:
    async def then(batcher: Batcher, work: Work, first: Any) -> None:
        gone = asyncio.create_task(batcher.submit("a", ["1", "2", "3"]))
        stays = asyncio.create_task(batcher.submit("a", ["4", "5"]))
        await asyncio.sleep(0)
        with pytest.raises(Full):
            await batcher.submit("a", ["6"])
        gone.cancel()
        await asyncio.sleep(0)
        late = asyncio.create_task(batcher.submit("a", ["6"]))
        await asyncio.sleep(0)
        work.may_end.set()
        assert await asyncio.gather(stays, late) == [["44", "55"], ["66"]]

    assert with_first_under_way(then).batches == [("a", ["0"]), ("a", ["4", "5", "6"])]


def test_an_item_that_fails_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def then(batcher: Batcher, work: Work, first: Any) -> None:
        tasks = [asyncio.create_task(batcher.submit("a", [item])) for item in ("1", "bad", "2")]
        await asyncio.sleep(0)
        work.may_end.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[0] == ["11"]
        assert isinstance(found[1], ValueError)
        assert found[2] == ["22"]
        said = "a batch of 3 failed, each is tried alone: ValueError(['1', 'bad', '2'])"
        assert caplog.messages == [said]

    with_first_under_way(then)


def test_of_a_request_that_has_failed_no_more_is_computed() -> None:
    async def then(batcher: Batcher, work: Work, first: Any) -> None:
        failing = asyncio.create_task(batcher.submit("a", ["bad", *"1234"]))
        await asyncio.sleep(0)
        work.may_end.set()
        with pytest.raises(ValueError, match="bad"):
            await failing
        assert len(batcher) == 0
        assert await batcher.submit("b", ["5"]) == ["55"]

    assert ("a", ["3", "4"]) not in with_first_under_way(then).batches


@pytest.mark.parametrize("n_steps", range(6))
def test_it_ends_while_something_comes_that_it_waits_for(n_steps: int) -> None:
    async def run() -> None:
        batcher = Batcher(lambda key, items: items, max_batch=3, max_wait=5, max_waiting=5)
        async with batcher.running():
            tasks = [asyncio.create_task(batcher.submit("a", ["0"]))]
            await asyncio.sleep(0.01)
            tasks.append(asyncio.create_task(batcher.submit("a", ["1"])))
            for _ in range(n_steps):
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()

    asyncio.run(asyncio.wait_for(run(), 10))
