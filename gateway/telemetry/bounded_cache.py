"""A bounded cache."""

from collections.abc import Callable, Hashable
from typing import Final, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST: Final = 16_384


class BoundedCache(dict[K, V]):
    """Values made by `make` on first access, by key. A full cache is cleared: frequent keys soon return."""

    __slots__ = ("_make", "_most")

    def __init__(self, make: Callable[[K], V], *, most: int = _MOST) -> None:
        super().__init__()
        self._make = make
        self._most = most

    def __missing__(self, key: K) -> V:
        if len(self) >= self._most:
            self.clear()
        found = self[key] = self._make(key)
        return found
