"""Arguments as they came: what cannot be read or hashed is told where the call is settled, not here."""

from typing import Any

from gateway.core.calls import decode_args
from gateway.core.exact_json import CallIdentity, call_identity


def identity_of(name: str, args: dict[str, Any]) -> CallIdentity | None:
    """What identifies a call by its contents; nothing for arguments that cannot be hashed."""
    try:
        return call_identity(name, args)
    except (TypeError, ValueError):
        return None


def decoded_args(args: dict[str, Any] | str | None) -> dict[str, Any]:
    """The arguments as an object; an empty one for what is none."""
    try:
        return decode_args({} if args is None else args)
    except (TypeError, ValueError):
        return {}
