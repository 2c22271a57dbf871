"""Long reads in a thread that ends soon after nobody waits for it any more.

A thread cannot be interrupted, so the work asks between any two steps of it; a step is what may take a moment.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from threading import Event
from typing import TypeVar

Answer = TypeVar("Answer")

_given_up: ContextVar[Event | None] = ContextVar("given_up", default=None)


async def in_thread(work: Callable[[], Answer]) -> Answer:
    """What `work` answers, from a thread. Cancelling takes effect at once; the thread ends at its next step."""
    given_up = Event()
    token = _given_up.set(given_up)  # the thread works in a copy of this context
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        given_up.set()
        raise
    finally:
        _given_up.reset(token)


def step() -> None:
    """Raise `CancelledError` if this is the thread of a caller that was cancelled."""
    given_up = _given_up.get()
    if given_up is not None and given_up.is_set():
        raise asyncio.CancelledError
