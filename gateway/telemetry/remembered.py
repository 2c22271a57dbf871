"""What was encoded once and is told again."""

from collections.abc import Callable, Hashable
from typing import Final, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MOST: Final = 16_384


class Remembered(dict[K, V]):
    """What was made, by what it is made of. Full, it begins anew: what comes often is soon there again."""

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
