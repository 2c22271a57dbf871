"""Moments as records have them: microseconds since 1970. Datetimes cost more, and are made when somebody looks."""

from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def clock() -> int:
    """Microseconds since 1970."""
    return time_ns() // 1000


def microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // _MICROSECOND


def microseconds_in(duration: timedelta) -> int:
    return duration // _MICROSECOND


def moment(microseconds: int) -> datetime:
    return EPOCH + microseconds * _MICROSECOND
