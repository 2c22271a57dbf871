"""Coroutines that are begun at once, and waited for only if they wait for something themselves.

Most bodies are there when they are asked for, and most functions return without waiting: for those no deadline needs to
be set and taken back.
"""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Done(Generic[T]):
    """Something to wait for that is there already: `value`."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, T]:
        yield from ()
        return self.value


class Begun(Generic[T]):
    """A coroutine that has run up to its first wait. If it `is_over`, `value` is what it returned; else await this."""

    __slots__ = ("_coroutine", "_waits_for", "is_over", "value")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        """Raises what the coroutine raises before it waits."""
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
