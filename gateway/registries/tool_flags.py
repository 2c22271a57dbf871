"""Flags of tools: what a tool can do, what implies or claims it, and proposals for tools that declare nothing.

Effects are what a call can do: a document declares them by the flags of a tool, or the method of an HTTP operation
implies them. Otherwise they are unknown, and the tool has all of `EFFECT_FLAGS`. Claims of an upstream only add flags.

Forbidden combinations of flags are a static analysis of the selected tools: private data, untrusted text and egress in
one catalogue allow data to leak. A waiver names who accepted a combination, why, and until when.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from json import dumps
from typing import Any, Final, Literal

from gateway.registries.tool_selection import GovernedTool

Effects = Literal["declared", "implied", "unknown"]
"""Source of the effects: declared by a document, implied by the HTTP method, or unknown."""

WRITES: Final = "writes"
DESTRUCTIVE: Final = "destructive"
EGRESS: Final = "egress"
EFFECT_FLAGS: Final = frozenset({WRITES, DESTRUCTIVE, EGRESS})
"""Built-in flags, which exist without a TrustFlag document. Tools of unknown effects have all of them."""

CHANGES: Final = frozenset({WRITES, DESTRUCTIVE})
"""Flags of tools whose calls must not be retried or answered from a cache."""

_ORDER: Final = (WRITES, DESTRUCTIVE, EGRESS)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_CHANGING_METHODS: Final = frozenset({"PUT", "PATCH", "DELETE"})
"""Methods that always change something; POST is often used for searches."""

Hint = Literal["readOnly", "destructive", "idempotent", "openWorld"]


@dataclass(frozen=True, slots=True)
class Flag:
    """Something that a tool can do. A flag can imply other flags and provides hints for clients."""

    name: str
    description: str = ""
    implies: frozenset[str] = frozenset()
    hints: Mapping[Hint, bool] = field(default_factory=dict)


BUILT_IN_FLAGS: Final[Mapping[str, Flag]] = {
    WRITES: Flag(WRITES, "Changes something.", hints={"readOnly": False}),
    DESTRUCTIVE: Flag(
        DESTRUCTIVE,
        "May destroy something.",
        implies=frozenset({WRITES}),
        hints={"readOnly": False, "destructive": True},
    ),
    EGRESS: Flag(EGRESS, "Can carry data out.", hints={"openWorld": True}),
}
"""Built-in effect flags; a TrustFlag document of the same name can only add to them."""


def method_flags(method: str) -> frozenset[str]:
    """Return the flags that an HTTP method implies. An unknown method counts as writing."""
    named = method.upper()
    if named in _SAFE_METHODS:
        return frozenset()
    return frozenset({WRITES, DESTRUCTIVE}) if named == "DELETE" else frozenset({WRITES})


def contradicts_method(method: str, flags: Iterable[str]) -> bool:
    """Whether the flags declare no change although the method changes something."""
    return method.upper() in _CHANGING_METHODS and CHANGES.isdisjoint(flags)


def find_claimed_flags(annotations: Mapping[str, Any]) -> frozenset[str]:
    """Return the flags that an upstream's annotations add to its tool. Reassuring hints are ignored.

    A hint that is not a boolean counts as the alarming value.
    """
    found: set[str] = set()
    if _is_claimed(annotations, "readOnlyHint", unless=True):
        found.add(WRITES)
    if _is_claimed(annotations, "destructiveHint", unless=False):
        found |= CHANGES
    if _is_claimed(annotations, "openWorldHint", unless=False):
        found.add(EGRESS)
    return frozenset(found)


def claims_not_idempotent(annotations: Mapping[str, Any]) -> bool:
    """Whether an upstream declares that its tool is not idempotent."""
    return _is_claimed(annotations, "idempotentHint", unless=True)


def _is_claimed(annotations: Mapping[str, Any], hint: str, *, unless: bool) -> bool:
    value = annotations.get(hint)
    return value is not None and value is not unless


def in_effect_order(flags: Iterable[str]) -> list[str]:
    """Return effect flags first, in order of severity, then other flags by name."""
    given = set(flags)
    return [*(flag for flag in _ORDER if flag in given), *sorted(given.difference(_ORDER))]


def add_implied_flags(names: Iterable[str], flags: Mapping[str, Flag]) -> frozenset[str]:
    """Return the flags and all flags that they imply, transitively."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += flags[name].implies if name in flags else ()
    return frozenset(found)


def most_alarming(answers: Iterable[Mapping[Hint, bool]]) -> dict[Hint, bool]:
    """Merge hints; the more alarming value of each wins."""
    hints: dict[Hint, bool] = {}
    for hint, value in (each for answer in answers for each in answer.items()):
        current = hints.get(hint, value)
        hints[hint] = (current or value) if hint in ("destructive", "openWorld") else (current and value)
    return hints


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


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed flags of a tool for a reviewer. They are never applied automatically."""

    tool: str
    flags: tuple[str, ...]
    because: str

    @property
    def line(self) -> str:
        return f"{dumps(self.tool)}: {{flags: [{', '.join(self.flags)}]}}"


def propose_flags(tool: str, *, annotations: Mapping[str, Any], method: str | None = None) -> Proposal:
    """Combine the flags that the upstream claims, the method implies and the name suggests."""
    words = [word.lower() for word in _CAMEL.split(tool) if word]
    claims = find_claimed_flags(annotations)
    implied = frozenset[str]() if method is None else method_flags(method)
    named = _guess_flags(words)
    reasons = [
        *(["the server declares it"] if claims else []),
        *([f"{method} implies it"] if implied else []),
        *(["its name suggests it"] if named else []),
    ]
    if flags := claims | implied | named:
        return Proposal(tool, tuple(in_effect_order(flags)), " and ".join(reasons))
    if method is not None:
        return Proposal(tool, (), f"{method} changes nothing")
    if annotations.get("readOnlyHint") is True:
        return Proposal(tool, (), "the server declares that it only reads")
    if words and words[0] in _READS.split():
        return Proposal(tool, (), "its name suggests that it only reads")
    return Proposal(tool, _ORDER, "its effects are unknown")


def _guess_flags(words: Sequence[str]) -> frozenset[str]:
    """Return the flags that the words of a name suggest; none if the first word is a verb of reading."""
    if not words or words[0] in _READS.split():
        return frozenset()
    destroys, sends = (not set(words).isdisjoint(each.split()) for each in (_DESTROYS, _SENDS))
    writes = destroys or sends or not set(words).isdisjoint(_WRITES.split())
    return frozenset(flag for flag, is_named in zip(_ORDER, (writes, destroys, sends), strict=True) if is_named)


@dataclass(frozen=True, slots=True)
class Waiver:
    """Accepts one forbidden combination until the end of a day."""

    flags: frozenset[str]
    until: date
    by: str
    because: str


@dataclass(frozen=True, slots=True)
class Combination:
    """A forbidden combination in a catalogue, with the tools that have each flag."""

    flags: frozenset[str]
    tools_by_flag: Mapping[str, tuple[str, ...]]
    waiver: Waiver | None = None


def find_forbidden_combinations(
    tools: Iterable[GovernedTool],
    forbidden: Iterable[frozenset[str]],
    waivers: Sequence[Waiver] = (),
    *,
    today: date,
) -> list[Combination]:
    """Return the forbidden combinations that the tools have together. An expired waiver is ignored."""
    listed = list(tools)
    found = []
    for flags in forbidden:
        tools_by_flag = {flag: tuple(tool.name for tool in listed if flag in tool.flags) for flag in sorted(flags)}
        if all(tools_by_flag.values()):
            found.append(Combination(flags, tools_by_flag, _waiver_for(flags, waivers, today)))
    return found


def _waiver_for(flags: frozenset[str], waivers: Sequence[Waiver], today: date) -> Waiver | None:
    return next((waiver for waiver in waivers if waiver.flags == flags and today <= waiver.until), None)
