"""Sightings: which trust flags a caller has seen, and when last, in whichever turn or session.

`caller.saw("flag", "1h")` asks for them. A sighting is durable before the call that brings the flag runs.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, Protocol

from gateway.governance.principals import Principal

LONGEST: Final = timedelta(days=30)
"""How far back a rule can look; older sightings are forgotten."""


_DURATION: Final = re.compile(r"([1-9][0-9]{0,8})(ms|s|m|h|d)")
_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration(text: str) -> timedelta | None:
    """A number and a unit, as in documents; `None` for anything else."""
    found = _DURATION.fullmatch(text)
    return None if found is None else timedelta(milliseconds=int(found[1]) * _UNITS[found[2]])


def is_recent(seen: int | None, now: int, within: str) -> bool:
    """Whether something was seen so recently; moments are microseconds. A clock that was set back makes it recent."""
    span = parse_duration(within)
    if span is None:
        raise ValueError("that is no duration")
    return seen is not None and now - seen <= span // timedelta(microseconds=1)


class Sightings(Protocol):
    """Known to all processes that serve together. Raises `StoreUnavailable`."""

    async def of(self, principal: Principal) -> Mapping[str, int]:
        """When the caller saw each flag last, in microseconds since 1970."""
        ...

    async def note(self, principal: Principal, flags: Iterable[str]) -> None:
        """The caller is about to see these. Durable when this returns."""
        ...
