"""Cooperative abort: a controller owns the decision, its signal is what others watch."""

from collections.abc import Callable
from typing import Any


class AbortSignal:
    """Read side of an abort. Listeners run once, in order, when the abort happens."""

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
        return lambda: (self._listeners.pop(key, None), None)[1]

    def _fire(self, reason: Any) -> None:
        if self.aborted:
            return
        self.aborted = True
        self.reason = reason
        listeners, self._listeners = list(self._listeners.values()), {}
        for listener in listeners:
            listener()


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
