"""Moments on the command line: how long ago, or when; and as people are shown them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str | datetime) -> datetime:
    """An age such as 15m, a day, or a moment; without a zone it is UTC."""
    if isinstance(text, datetime):
        return text
    if age := re.fullmatch(r"(\d{1,6})([smhd])", text):
        return datetime.now(UTC) - timedelta(**{_UNITS[age[2]]: int(age[1])})
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter("write an age as 15m, 2h or 3d, or a moment as 2026-11-16T10:00:00Z") from None


def shown_moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
