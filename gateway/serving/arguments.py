"""Arguments of a call as they came, and what identifies the call by them.

Arguments that cannot be read or hashed are refused where the call runs, not here.
"""

from typing import Any, Final

from gateway.core.bounded_json import LARGE, read_apart
from gateway.core.calls import decode_args
from gateway.core.exact_json import CallIdentity, call_identity, is_short, plain_identity

_SHORT: Final = 4 << 10
"""Bytes of arguments that are hashed on the event loop even if each number needs a closer look."""


async def identity_of(name: str, args: dict[str, Any]) -> CallIdentity | None:
    """What identifies a call by its contents; nothing for arguments that cannot be hashed.

    The closer look is slow, so the event loop does not wait for it unless the arguments are short.
    """
    try:
        if not is_short(args, LARGE):
            return await read_apart(_identity, name, args)
        if (plain := plain_identity(name, args)) is not None:
            return plain
        return call_identity(name, args) if is_short(args, _SHORT) else await read_apart(call_identity, name, args)
    except (TypeError, ValueError):
        return None


def _identity(name: str, args: dict[str, Any]) -> CallIdentity:
    return plain_identity(name, args) or call_identity(name, args)


async def decoded_args(args: dict[str, Any] | str | None) -> dict[str, Any]:
    """The arguments as an object of their own; an empty one for what is none. Large ones are copied in a thread."""
    try:
        if args is None or is_short(args, LARGE):
            return decode_args(args or {})
        return await read_apart(decode_args, args)
    except (TypeError, ValueError):
        return {}
