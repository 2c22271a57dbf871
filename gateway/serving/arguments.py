"""Arguments of a call as they came, and what identifies the call by them.

Arguments that cannot be read or hashed are refused where the call runs, not here. Large ones are read in a thread.
"""

from typing import Any, Final

from gateway.core.bounded_json import LARGE, read_apart
from gateway.core.calls import decode_args
from gateway.core.exact_json import CallIdentity, call_identity, is_short, plain_identity

Given = dict[str, Any] | str | None

_SHORT: Final = 4 << 10
"""Bytes of arguments that are hashed on the event loop even if each number needs a closer look."""


async def read_arguments(name: str, given: Given) -> tuple[dict[str, Any], CallIdentity | None]:
    """The arguments as an object of their own, empty for what is none, and what identifies the call by its contents.

    There is no identity of arguments that cannot be hashed.
    """
    if given is not None and not is_short(given, LARGE):
        return await read_apart(_read, name, given)
    args = _decoded(given)
    try:
        plain = plain_identity(name, args)
    except (TypeError, ValueError):
        return args, None
    if plain is not None:
        return args, plain
    return args, _identity(name, args) if is_short(args, _SHORT) else await read_apart(_identity, name, args)


def _read(name: str, given: Given) -> tuple[dict[str, Any], CallIdentity | None]:
    args = _decoded(given)
    return args, _identity(name, args)


def _decoded(given: Given) -> dict[str, Any]:
    try:
        return decode_args({} if given is None else given)
    except (TypeError, ValueError):
        return {}


def _identity(name: str, args: dict[str, Any]) -> CallIdentity | None:
    """The closer look at each number is slow, so it is taken only where the plain way does not do."""
    try:
        return plain_identity(name, args) or call_identity(name, args)
    except (TypeError, ValueError):
        return None
