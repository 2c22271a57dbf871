"""What every backend says no with: at construction, in time, and in words that a model may read."""

import asyncio
import re
import unicodedata
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from gateway.errors import ProgramError
from gateway.governance.ports import BackendFailed

EXCERPT: Final = 2048
"""Characters of somebody else's text that a message may quote."""

REDACTED: Final = "[redacted]"
_SHORTEST_SECRET: Final = 4


class BackendUnusable(ProgramError):
    """A backend that cannot do what was declared is not built at all."""

    code = "E_BACKEND_UNUSABLE"
    default_message = "the backend cannot do what was declared"


@asynccontextmanager
async def within(timeout: timedelta | None) -> AsyncIterator[asyncio.Timeout]:
    """Ends what runs inside once the time is up. A caller's own cancellation passes through untouched."""
    try:
        async with asyncio.timeout(None if timeout is None else timeout.total_seconds()) as deadline:
            yield deadline
    except TimeoutError as error:
        if timeout is None or not deadline.expired():
            raise
        raise BackendFailed("unavailable", f"no result within {timeout.total_seconds():g} s") from error


def excerpt(text: str | bytes, *, secrets: Iterable[str] = (), limit: int = EXCERPT) -> str:
    """One line of somebody else's text: secrets gone, control and direction characters spelled out."""
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            shown = shown.replace(secret, REDACTED)
    shown = "".join(map(_visible, shown.strip()))
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def type_name(value: object) -> str:
    """A class is named by whoever wrote it, so the name is shown only as far as it is one."""
    return re.sub(r"[^A-Za-z0-9_.]", "", type(value).__name__)[:80] or "object"


def _visible(character: str) -> str:
    if unicodedata.category(character)[0] != "C" and character not in "\u2028\u2029":
        return character
    return character.encode("unicode_escape").decode("ascii")
