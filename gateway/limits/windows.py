"""Windows of a quota: stretches of equal length, counted from 1970 in UTC."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Window:
    number: int
    end: datetime


def window_at(at: datetime, per: timedelta) -> Window:
    """The window a moment is in. A clock that is set back finds the earlier window as it was left."""
    number = (at - _EPOCH) // per
    return Window(number, _EPOCH + (number + 1) * per)
