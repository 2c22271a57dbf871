"""Arguments as they came: what cannot be read or hashed is told where the call is settled, not here."""

from typing import Any

from gateway.core.calls import decode_args
from gateway.core.canonical import identified


def checked(name: str, args: dict[str, Any]) -> tuple[str, str | None]:
    """The call's checksum and the text of its arguments; neither for arguments that cannot be hashed."""
    try:
        checksum, text = identified(name, args)
    except (TypeError, ValueError):
        return "", None
    return checksum, text.decode()


def decoded_args(args: dict[str, Any] | str | None) -> dict[str, Any]:
    """The arguments as an object; an empty one for what is none."""
    try:
        return decode_args({} if args is None else args)
    except (TypeError, ValueError):
        return {}
