"""Abort signals, cancellable work in threads, and eager coroutines.

- `AbortController` and `AbortSignal`: cooperative abort. They cancel no task; listeners decide how to stop.
- `run_in_thread`: long work in a thread. A thread cannot be interrupted, so the work calls `check_cancelled` between
  steps, and ends soon after its caller is cancelled.
- `EagerCoroutine`: a coroutine that is started at once and awaited only if it has to wait. Most request bodies are
  complete when they are read, and most functions return without waiting, so they need no deadline.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from threading import Event
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_cancelled: ContextVar[Event | None] = ContextVar("cancelled", default=None)


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread. Cancelling takes effect at once; the thread ends at its next `check_cancelled`."""
    cancelled = Event()
    token = _cancelled.set(cancelled)  # the thread runs in a copy of this context
    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        cancelled.set()
        raise
    finally:
        _cancelled.reset(token)


def check_cancelled() -> None:
    """Raise `CancelledError` in a thread whose caller was cancelled."""
    cancelled = _cancelled.get()
    if cancelled is not None and cancelled.is_set():
        raise asyncio.CancelledError


class AbortSignal:
    """Read side of an abort. Listeners run once, in order, when the abort happens.

    If listeners raise, the others still run; then their errors are raised as an `ExceptionGroup`.
    """

    def __init__(self) -> None:
        self.aborted = False
        self.reason: Any = None
        self._listeners: dict[object, Callable[[], None]] = {}

    def on_abort(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on abort, at once if it already happened; returns an unsubscribe function."""
        if self.aborted:
            listener()
            return lambda: None
        key = object()
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def _fire(self, reason: Any) -> None:
        if self.aborted:
            return
        self.aborted = True
        self.reason = reason
        errors: list[Exception] = []
        while self._listeners:  # one by one: a listener may unsubscribe those behind it
            listener = self._listeners.pop(next(iter(self._listeners)))
            try:
                listener()
            except Exception as error:  # raised below, after all listeners ran
                errors.append(error)
        if errors:
            raise ExceptionGroup("listeners of an abort failed", errors)


class AbortController:
    """Write side of an abort. It also aborts when its parent does, never the other way round."""

    def __init__(self, parent: AbortSignal | None = None) -> None:
        self.signal = AbortSignal()
        self._unchain = parent.on_abort(lambda: self.abort(parent.reason)) if parent else None

    def abort(self, reason: Any = None) -> None:
        self.signal._fire(reason)

    def release(self) -> None:
        """Stop listening to the parent, so that a long-lived parent does not reference every child."""
        if self._unchain:
            self._unchain()


class CompletedAwaitable(Generic[T]):
    """An awaitable that returns `value` without waiting."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, T]:
        yield from ()
        return self.value


class EagerCoroutine(Generic[T]):
    """A coroutine that has run up to its first wait. If it `is_over`, `value` is its result; otherwise await it."""

    __slots__ = ("_coroutine", "_waits_for", "is_over", "value")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Start the coroutine. Raises whatever it raises before its first wait."""
        self._coroutine = coroutine
        self.is_over = False
        try:
            self._waits_for = coroutine.send(None)
        except StopIteration as over:
            self.value: T = over.value
            self.is_over = True

    def __await__(self) -> Generator[Any, Any, T]:
        waits_for = self._waits_for
        while True:
            try:
                try:
                    answer = yield waits_for
                except GeneratorExit:
                    self._coroutine.close()
                    raise
                except BaseException as error:
                    waits_for = self._coroutine.throw(error)
                else:
                    waits_for = self._coroutine.send(answer)
            except StopIteration as over:
                value: T = over.value
                return value
