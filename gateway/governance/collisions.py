"""Collisions: which of two tools gets a name, decided by a declared policy and reported.

The model's merge asks the incoming tool first, then the policy. Whatever they say, a tool never takes the name of one
that is trusted more, and never makes a name lead to a tool of the same standing that can do more. Names that merely
look alike are never merged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.core.tools import OnCollision
from gateway.governance.diagnostics import Position
from gateway.governance.effects import Effects
from gateway.governance.globs import glob_matches
from gateway.governance.names import folded, skeleton

HonourTool = Literal["always", "sameOrHigherTrust", "never"]
Compare = Literal["exact", "folded"]
LookAlikes = Literal["throw", "ignore"]
Outcome = Literal["throw", "replace", "keep"]
NameKind = Literal["tool", "prompt", "resource"]
"""What two sources want to have: the name of a tool or of a prompt, or what URIs of a pattern lead to."""

FORGED_NAMES: Final = "artifact_*"
"""Belongs to forged query tools, whatever a policy reserves besides, and with whichever separator."""

_SEPARATORS: Final = str.maketrans("-.", "__")


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool as far as its name is concerned. `rank` is that of its tier: lower is more trusted."""

    name: str
    source: str
    rank: int
    position: Position
    on_collision: OnCollision = "throw"
    trusted: bool = False
    effects: Effects = "declared"
    flags: frozenset[str] = frozenset()
    is_imported: bool = False
    """Whether an upstream brings it."""


@dataclass(frozen=True, slots=True)
class CollisionRules:
    """A collision policy. Sources are merged in the order they are given."""

    on_collision: OnCollision = "throw"
    honour_tool: HonourTool = "sameOrHigherTrust"
    compare: Compare = "folded"
    look_alikes: LookAlikes = "throw"
    reserved: tuple[str, ...] = ()

    def key(self, name: str) -> str:
        return folded(name) if self.compare == "folded" else name


@dataclass(frozen=True, slots=True)
class Collision:
    """Two tools wanted one name, or two prompts, or groups of resources one URI. `reason` says whose word decided."""

    existing: NamedTool
    incoming: NamedTool
    outcome: Outcome
    reason: str
    kind: NameKind = "tool"
    is_about_trust: bool = False
    """Whether trust refused what the tool or the policy wanted."""

    @property
    def is_error(self) -> bool:
        return self.outcome == "throw"


@dataclass(frozen=True, slots=True)
class LookAlike:
    """Two different names that a reader cannot tell apart."""

    first: NamedTool
    second: NamedTool


@dataclass(frozen=True, slots=True)
class Merged:
    """The tools that remain, in order, and everything that happened on the way."""

    tools: tuple[NamedTool, ...]
    collisions: tuple[Collision, ...] = ()
    look_alikes: tuple[LookAlike, ...] = ()
    reserved: tuple[NamedTool, ...] = ()


def merge(tools: Iterable[NamedTool], rules: CollisionRules) -> Merged:
    """Merge tools in order. A refused tool is left out; the first holder of a name keeps it and its place."""
    kept: dict[str, NamedTool] = {}
    collisions: list[Collision] = []
    reserved: list[NamedTool] = []
    for incoming in tools:
        if _is_reserved(incoming.name, rules):
            reserved.append(incoming)
            continue
        key = rules.key(incoming.name)
        if key in kept:
            collision = resolve(kept[key], incoming, rules)
            collisions.append(collision)
            if collision.outcome != "replace":
                continue
        kept[key] = incoming
    remaining = tuple(kept.values())
    return Merged(remaining, tuple(collisions), tuple(_look_alikes(remaining, rules)), tuple(reserved))


def resolve(existing: NamedTool, incoming: NamedTool, rules: CollisionRules) -> Collision:
    """Who gets the name: the incoming tool's opinion where it counts, the policy otherwise, and trust over both."""
    own = incoming.on_collision
    if own == "throw" or rules.honour_tool == "never":
        wanted = rules.on_collision
        reason = f"the policy decides: {'the incoming tool has no opinion' if own == 'throw' else 'no tool has a say'}"
    else:
        wanted, reason = own, f"the incoming tool says {own}"
    refusal = _refusal(existing, incoming, wanted)
    if refusal is not None:
        return Collision(existing, incoming, "throw", refusal, is_about_trust=True)
    return Collision(existing, incoming, wanted, reason)


def lower_standing(one: NamedTool, other: NamedTool) -> str | None:
    """Why one tool is trusted less than the other; `None` if it is not. The tier counts first."""
    if one.rank != other.rank:
        return "its tier is less trusted" if one.rank > other.rank else None
    if one.trusted != other.trusted:
        return None if one.trusted else "its results are not trusted"
    if one.effects == "unknown" != other.effects:
        return "its effects are unknown"
    return None


def _refusal(existing: NamedTool, incoming: NamedTool, wanted: Outcome) -> str | None:
    """Why the tool that would get the name must not have it: trust decides over every policy and order."""
    if wanted == "replace":
        if why := lower_standing(incoming, existing):
            return f"a less trusted tool may not replace a more trusted one: {why}"
        if incoming.rank == existing.rank and (more := incoming.flags - existing.flags):
            return f"a tool may not replace one of the same tier that can do less: it adds {', '.join(sorted(more))}"
    if wanted == "keep" and (why := lower_standing(existing, incoming)):
        return f"a less trusted tool may not keep a name from a more trusted one: {why}"
    return None


def _is_reserved(name: str, rules: CollisionRules) -> bool:
    spellings = {name.casefold(), name.casefold().translate(_SEPARATORS)}
    patterns = [pattern.casefold() for pattern in (FORGED_NAMES, *rules.reserved)]
    return any(glob_matches(spelling, pattern) for spelling in spellings for pattern in patterns)


def _look_alikes(tools: Sequence[NamedTool], rules: CollisionRules) -> Iterable[LookAlike]:
    first_of: dict[str, NamedTool] = {}
    for tool in tools if rules.look_alikes == "throw" else ():
        first = first_of.setdefault(skeleton(tool.name), tool)
        if first is not tool:
            yield LookAlike(first, tool)
