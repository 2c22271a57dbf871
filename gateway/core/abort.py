"""Cooperative abort: a controller owns the decision, its signal is what others watch.

It cancels no task and knows nothing of turns or gates; whoever watches decides what stopping means.
"""

from collections.abc import Callable
from typing import Any


class AbortSignal:
    """Read side of an abort. Listeners run once, in order, when the abort happens.

    One that raises does not keep the others from running; what was raised leaves afterwards,
    as an `ExceptionGroup`.
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
            except Exception as error:  # raised again below, when everybody was told
                errors.append(error)
        if errors:
            raise ExceptionGroup("listeners of an abort failed", errors)


class AbortController:
    """Write side. With a parent it aborts when the parent does, never the other way round."""

    def __init__(self, parent: AbortSignal | None = None) -> None:
        self.signal = AbortSignal()
        self._unchain = parent.on_abort(lambda: self.abort(parent.reason)) if parent else None

    def abort(self, reason: Any = None) -> None:
        self.signal._fire(reason)

    def release(self) -> None:
        """Stop listening to the parent, so that a long-lived one does not keep every child."""
        if self._unchain:
            self._unchain()
