"""How far a reader of events is: a number for each log that it has read in, as one id on the wire."""

import re
from collections.abc import Mapping
from typing import Final

LOGS: Final = b"gateway-event-logs"
"""The header that names the logs which a stream is made of."""

MOST_LOGS: Final = 64
_PLACE: Final = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})")


def encoded(places: Mapping[str, int]) -> str:
    return ".".join(f"{log}-{number}" for log, number in sorted(places.items()))


def decoded(id: str) -> dict[str, int] | None:
    """The number of the last event by log; `None` for what is no such id."""
    found = [_PLACE.fullmatch(part) for part in id.split(".", MOST_LOGS)]
    return {each[1]: int(each[2]) for each in found if each} if all(found) else None
