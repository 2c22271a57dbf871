"""The target of a request: a path and a query, and nothing that another reader could take for a host.

Only the origin form is read, and `*` for OPTIONS. A path stays as it was sent: no segment is removed or joined, and
whatever would be another path after decoding is refused.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

MAX_TARGET: Final = 16 << 10
_MAX_CACHED: Final = 256
"""Bytes of a target that is worth remembering. Longer ones are rare, and a stranger chooses them."""

_ORIGIN_FORM: Final = re.compile(
    rb"""
    (/(?!/)(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*+)
    (?:\?((?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*+))?+
    """,
    re.VERBOSE,
)
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f/\\]")
"""What a segment must not contain once it is decoded."""


class BadTarget(ValueError):
    """The target is not one that is served."""


class Target(NamedTuple):
    path: str
    """Decoded once."""
    raw_path: bytes
    query: bytes


ASTERISK: Final = Target("*", b"*", b"")
"""The server as a whole, for OPTIONS."""


def read_target(method: bytes, target: bytes) -> Target:
    """Raises `BadTarget`."""
    if target == b"*" and method == b"OPTIONS":
        return ASTERISK
    return _remembered(target) if len(target) <= _MAX_CACHED else _read(target)


def _read(target: bytes) -> Target:
    if len(target) > MAX_TARGET:
        raise BadTarget("The target of the request is too long.")
    found = _ORIGIN_FORM.fullmatch(target)
    if found is None:
        raise BadTarget("The target of the request must be a path and a query.")
    raw_path, query = found[1], found[2] or b""
    if b"%00" in query:
        raise BadTarget("The query of the request must not contain NUL.")
    return Target(_decoded(raw_path), raw_path, query)


def _decoded(raw_path: bytes) -> str:
    if b"%" not in raw_path and b"/." not in raw_path:
        return raw_path.decode("ascii")
    try:
        segments = [unquote_to_bytes(each).decode("utf-8") for each in raw_path.split(b"/")]
    except UnicodeDecodeError:
        raise BadTarget("The path of the request is not UTF-8.") from None
    if any(each in (".", "..") or _FORBIDDEN.search(each) for each in segments):
        raise BadTarget("The path of the request must not contain dot segments, or encoded separators or controls.")
    return "/".join(segments)


_remembered: Final = lru_cache(maxsize=64)(_read)
