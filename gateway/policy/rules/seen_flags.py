"""When a caller last saw results with a flag, and how far back rules can look."""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, Protocol

from gateway.model import Principal

LONGEST: Final = timedelta(days=30)
"""How far back a rule can look; older sightings are dropped."""


_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: str) -> timedelta | None:
    """Parse a number and a unit, as in documents; `None` for anything else."""
    found = _DURATION.fullmatch(text)
    return None if found is None else timedelta(milliseconds=int(found[1]) * _UNITS[found[2]])


def is_recent(seen: int | None, now: int, within: str) -> bool:
    """Whether `seen` is at most `within` ago; times are microseconds. A clock that was set back makes it recent."""
    span = parse_duration(within)
    if span is None:
        raise ValueError("not a duration")
    return seen is not None and now - seen <= span // timedelta(microseconds=1)


class Sightings(Protocol):
    """Shared by all processes that serve together. Raises `StoreUnavailable`."""

    async def of(self, principal: Principal) -> Mapping[str, int]:
        """Return when the caller last saw each flag, in microseconds since 1970."""
        ...

    async def note(self, principal: Principal, flags: Iterable[str]) -> None:
        """Record that the caller is about to see these flags. Durable when this returns."""
        ...
