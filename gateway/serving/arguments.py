"""Arguments of a call as they came, and what identifies the call by them.

Arguments that cannot be read or hashed are refused where the call runs, not here.
"""

from typing import Any, Final

from gateway.core.bounded_json import read_apart
from gateway.core.calls import decode_args
from gateway.core.exact_json import CallIdentity, call_identity, is_short, plain_identity

_SHORT: Final = 4 << 10
"""Bytes of arguments that are hashed on the event loop even if each number needs a closer look."""


async def identity_of(name: str, args: dict[str, Any]) -> CallIdentity | None:
    """What identifies a call by its contents; nothing for arguments that cannot be hashed.

    The closer look is slow, so the event loop does not wait for it unless the arguments are short.
    """
    try:
        if (plain := plain_identity(name, args)) is not None:
            return plain
        return call_identity(name, args) if is_short(args, _SHORT) else await read_apart(call_identity, name, args)
    except (TypeError, ValueError):
        return None


def decoded_args(args: dict[str, Any] | str | None) -> dict[str, Any]:
    """The arguments as an object; an empty one for what is none."""
    try:
        return decode_args({} if args is None else args)
    except (TypeError, ValueError):
        return {}
