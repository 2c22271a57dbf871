"""W3C trace context and baggage, as callers send them: read with suspicion, written by the letter.

What is malformed is as good as absent. Baggage is nothing but what is listed, and never much.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MOST_BAGGAGE: Final = 32
LARGEST_BAGGAGE: Final = 8 << 10
_LARGEST_STATE: Final = 512
_MOST_STATES: Final = 32

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_VALUE: Final = r"\x21-\x2b\x2d-\x3c\x3e-\x7e"
_STATE: Final = re.compile(rf"[a-z0-9][a-z0-9_\-*/@]{{0,255}}=[\x20{_VALUE}]{{0,255}}[{_VALUE}]")
_MEMBER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+=[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_NOWHERE: Final = ("0" * 32, "0" * 16)


@dataclass(slots=True)
class Remote:
    """A span of somebody else."""

    trace_id: bytes
    span_id: bytes
    is_sampled: bool
    state: str = ""


def remote(traceparent: object, tracestate: object = None) -> Remote | None:
    """`None` for what is no trace context."""
    if not isinstance(traceparent, str) or len(traceparent) > _LARGEST_STATE:
        return None
    found = _PARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NOWHERE[0] or span_id == _NOWHERE[1]:
        return None
    return Remote(bytes.fromhex(trace_id), bytes.fromhex(span_id), bool(int(flags, 16) & 1), _state(tracestate))


def traceparent(trace_id: bytes, span_id: bytes, *, is_sampled: bool) -> str:
    return f"00-{trace_id.hex()}-{span_id.hex()}-{'01' if is_sampled else '00'}"


def baggage(given: object, allowed: frozenset[str]) -> str:
    """Of what came the members that are listed, their properties left out; nothing if there is too much of it."""
    if not allowed or not isinstance(given, str) or len(given) > LARGEST_BAGGAGE:
        return ""
    members = given.split(",")
    if len(members) > MOST_BAGGAGE:
        return ""
    kept = {}
    for member in members:
        pair = member.partition(";")[0].strip(" \t")
        key, _, value = pair.partition("=")
        name = key.strip(" \t")
        if name in allowed and _MEMBER.fullmatch(f"{name}={value.strip(' ')}"):
            kept[name] = value.strip(" \t")
    return ",".join(f"{name}={value}" for name, value in kept.items())


def carried(fields: Mapping[str, object]) -> tuple[object, object]:
    """What a mapping with the names of the headers says of a trace."""
    return fields.get("traceparent"), fields.get("tracestate")


def _state(given: object) -> str:
    """Passed on as a whole or not at all: half of it would say something else."""
    if not isinstance(given, str) or len(given) > _LARGEST_STATE:
        return ""
    members = [each.strip(" \t") for each in given.split(",")]
    members = [each for each in members if each]
    if len(members) > _MOST_STATES or not all(_STATE.fullmatch(each) for each in members):
        return ""
    return ",".join(members)
