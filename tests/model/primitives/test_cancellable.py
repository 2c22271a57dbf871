"""A thread whose caller was cancelled ends at its next step; other threads continue."""

import asyncio
from threading import Event
from typing import Any

import pytest

from gateway.artifacts.indexed_reader import BLOCK, IndexedReader
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.model.primitives.concurrency import check_cancelled, run_in_thread

pytestmark = pytest.mark.anyio


async def test_work_in_a_thread_answers_and_raises() -> None:
    def fails() -> None:
        raise KeyError("x")

    assert await run_in_thread(lambda: 5) == 5
    with pytest.raises(KeyError):
        await run_in_thread(fails)
    check_cancelled()


async def test_step_of_a_thread_that_is_waited_for_goes_on() -> None:
    await run_in_thread(check_cancelled)


class Held(IndexedReader):
    """Signals its first read and blocks there."""

    def __init__(self) -> None:
        super().__init__(InMemoryReader(b"a\n" * (2 << 20))._index)
        self.begun, self.released, self.reads = Event(), Event(), 0

    def read_range(self, offset: int, length: int) -> bytes:
        self.reads += 1
        self.begun.set()
        assert self.released.wait(10)
        return (b"a\n" * (length // 2 + 1))[: min(length, self.byte_length() - offset)]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda artifact: artifact.grep("b"), id="grep"),
        pytest.param(lambda artifact: artifact.cat(), id="cat"),
        pytest.param(lambda artifact: artifact.tail(10**6), id="tail"),
    ],
)
async def test_cancelled_query_is_over_at_once_and_reads_no_further(ask: Any) -> None:
    reader = Held()
    loop = asyncio.get_running_loop()
    query = asyncio.create_task(ask(SpooledArtifact(reader)))
    assert await asyncio.to_thread(reader.begun.wait, 10)

    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query
    reader.released.set()
    await loop.shutdown_default_executor()

    assert reader.byte_length() // BLOCK > 10
    assert reader.reads == 1
