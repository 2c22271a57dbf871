"""Where a request comes from: how its caller was recognised, from which address, and which program says it calls.

It travels with the task of the request, so that the decision log finds it without every part in between passing it on;
nothing is ever decided by it.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from gateway.governance.principals import Credential

MAX_NAME: Final = 128
"""Characters of what a program calls itself."""


class Origin(NamedTuple):
    """`name` and `version` are what the program says of itself."""

    credential: Credential | None = None
    address: str | None = None
    name: str | None = None
    version: str | None = None


NOWHERE: Final = Origin()

_ORIGIN: Final[ContextVar[Origin]] = ContextVar("gateway_origin", default=NOWHERE)


current_origin: Final = _ORIGIN.get


def comes_from(credential: Credential | None, client: Sequence[Any] | None) -> None:
    """From here on the current request does; `client` is the address and port of its connection, if it has them."""
    _ORIGIN.set(Origin(credential, client[0] if client else None))


def calls_itself(info: object) -> None:
    """What a program says of itself, in the shape of MCP: whatever is not in that shape is not told."""
    if isinstance(info, dict):
        credential, address, _, _ = _ORIGIN.get()
        _ORIGIN.set(Origin(credential, address, _word(info.get("name")), _word(info.get("version"))))


def _word(value: object) -> str | None:
    return value[:MAX_NAME] if isinstance(value, str) and value else None
