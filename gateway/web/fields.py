"""The headers of a request, gone through once: whoever asks for one after that looks it up."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final

RawHeaders = Sequence[tuple[bytes, bytes]]

FIELDS: Final = "gateway.fields"
"""Where the scope of a request that was let in has them."""

_NONE: Final[frozenset[bytes]] = frozenset()


class Fields:
    """By lower-case name the first of each, and which names are there more than once."""

    __slots__ = ("_raw", "by_name", "repeated")

    def __init__(self, raw: RawHeaders) -> None:
        self._raw = raw
        self.by_name = dict(raw)
        self.repeated = _NONE
        if len(self.by_name) != len(raw):
            self.by_name = dict(reversed(raw))
            times = Counter(name for name, _ in raw)
            self.repeated = frozenset(name for name in times if times[name] > 1)

    @property
    def size(self) -> int:
        """Bytes of all names and values."""
        return sum(map(len, chain.from_iterable(self._raw)))

    def all(self, name: bytes) -> list[bytes]:
        """Every value of a name, in order."""
        return [value for key, value in self._raw if key == name]
