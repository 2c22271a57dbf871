"""Which call a request continues: its body is inspected for a bounded time."""

import asyncio
from typing import Any

import pytest

from gateway.app.cluster import worker_router as states
from gateway.app.cluster.worker_router import OF_WORKER, find_state_owner

pytestmark = pytest.mark.anyio


def make_receive(*pieces: bytes, is_whole: bool = True) -> Any:
    left = list(pieces)

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        piece = left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(left) or not is_whole}

    return receive


async def test_owner_is_found_and_the_body_is_read_from_its_beginning() -> None:
    owner, again = await find_state_owner(make_receive(b'{"requestState":', b'"w3.sealed"}'), OF_WORKER)

    assert owner == b"3"
    assert [(await again())["body"], (await again())["body"]] == [b'{"requestState":', b'"w3.sealed"}']


async def test_body_that_does_not_come_is_left_to_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_WITHIN", 0.05)

    owner, again = await find_state_owner(make_receive(b"{", is_whole=False), OF_WORKER)

    assert owner is None
    assert (await again())["body"] == b"{"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await again()
