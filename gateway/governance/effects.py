"""Effects: what a call can do to the world, and who says so.

A document declares the effects of a tool by its flags, the method of an HTTP operation implies them, or nobody says
anything. Then they are unknown, and the tool counts as able to do everything in `EFFECT_FLAGS`. What an upstream
claims is read only where it makes a tool look more dangerous.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from typing import Any, Final, Literal

Effects = Literal["declared", "implied", "unknown"]
"""Who says what a tool does: a document, the method of its HTTP request, or nobody."""

WRITES: Final = "writes"
DESTRUCTIVE: Final = "destructive"
EGRESS: Final = "egress"
EFFECT_FLAGS: Final = frozenset({WRITES, DESTRUCTIVE, EGRESS})
"""Flags that every project has, with or without a TrustFlag document, and all that an unknown tool counts as."""

CHANGES: Final = frozenset({WRITES, DESTRUCTIVE})
"""Flags of tools whose calls must not be repeated or answered from memory."""

_ORDER: Final = (WRITES, DESTRUCTIVE, EGRESS)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_CHANGING_METHODS: Final = frozenset({"PUT", "PATCH", "DELETE"})
"""Methods that change something whatever the service; POST is often used to search."""

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_READS: Final = """
check count describe download fetch find get has head help is list lookup peek ping query read retrieve search show stat
status view
"""
_WRITES: Final = """
accept add append apply approve archive assign book call cancel change clear close commit confirm copy create deploy
disable edit enable exec execute grant import insert install invite kill lock make merge modify move new open order
patch pay post publish push put refund register rename replace reset restart restore resume revoke rotate run save
schedule set start stop store submit sync toggle transfer unlock update upgrade upload upsert write
"""
_DESTROYS: Final = "clear delete destroy drop erase kill purge remove rm terminate truncate wipe"
_SENDS: Final = "email export forward invite mail message notify post publish send share upload"


def method_flags(method: str) -> frozenset[str]:
    """What an HTTP method implies. A method that is not known counts as one that writes."""
    named = method.upper()
    if named in _SAFE_METHODS:
        return frozenset()
    return frozenset({WRITES, DESTRUCTIVE}) if named == "DELETE" else frozenset({WRITES})


def contradicts_method(method: str, flags: Iterable[str]) -> bool:
    """Whether flags say that a request changes nothing though its method says that it does."""
    return method.upper() in _CHANGING_METHODS and CHANGES.isdisjoint(flags)


def claimed_flags(annotations: Mapping[str, Any]) -> frozenset[str]:
    """Flags that an upstream gives its own tool. Only what it says counts, and of that only what is alarming.

    A hint that is no truth value counts as the alarming one.
    """
    found: set[str] = set()
    if _is_claimed(annotations, "readOnlyHint", unless=True):
        found.add(WRITES)
    if _is_claimed(annotations, "destructiveHint", unless=False):
        found |= CHANGES
    if _is_claimed(annotations, "openWorldHint", unless=False):
        found.add(EGRESS)
    return frozenset(found)


def claims_repeats_matter(annotations: Mapping[str, Any]) -> bool:
    """Whether an upstream says that calling its tool twice is not like calling it once."""
    return _is_claimed(annotations, "idempotentHint", unless=True)


def _is_claimed(annotations: Mapping[str, Any], hint: str, *, unless: bool) -> bool:
    value = annotations.get(hint)
    return value is not None and value is not unless


def in_effect_order(flags: Iterable[str]) -> list[str]:
    """Flags of effects first, by how they escalate, then others by name."""
    given = set(flags)
    return [*(flag for flag in _ORDER if flag in given), *sorted(given.difference(_ORDER))]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Flags that a tool might have, guessed for a reviewer. Nothing applies them."""

    tool: str
    flags: tuple[str, ...]
    because: str

    @property
    def line(self) -> str:
        return f"{dumps(self.tool)}: {{flags: [{', '.join(self.flags)}]}}"


def propose_flags(tool: str, *, annotations: Mapping[str, Any], method: str | None = None) -> Proposal:
    """The most alarming of what the upstream claims, the method implies and the name suggests."""
    words = [word.lower() for word in _CAMEL.split(tool) if word]
    claims = claimed_flags(annotations)
    implied = frozenset[str]() if method is None else method_flags(method)
    named = _named_flags(words)
    reasons = [
        *(["its server says so"] if claims else []),
        *([f"{method} implies it"] if implied else []),
        *(["its name suggests it"] if named else []),
    ]
    if flags := claims | implied | named:
        return Proposal(tool, tuple(in_effect_order(flags)), " and ".join(reasons))
    if method is not None:
        return Proposal(tool, (), f"{method} changes nothing")
    if annotations.get("readOnlyHint") is True:
        return Proposal(tool, (), "its server says that it only reads")
    if words and words[0] in _READS.split():
        return Proposal(tool, (), "its name suggests that it only reads")
    return Proposal(tool, _ORDER, "nothing tells what it does")


def _named_flags(words: Sequence[str]) -> frozenset[str]:
    """What the words of a name suggest. A name that begins with a word for reading is read no further."""
    if not words or words[0] in _READS.split():
        return frozenset()
    destroys, sends = (not set(words).isdisjoint(each.split()) for each in (_DESTROYS, _SENDS))
    writes = destroys or sends or not set(words).isdisjoint(_WRITES.split())
    return frozenset(flag for flag, is_named in zip(_ORDER, (writes, destroys, sends), strict=True) if is_named)
