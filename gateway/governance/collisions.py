"""Collisions: which of two tools gets a name, decided by a declared policy and reported.

The model's merge asks the incoming tool first; a policy closes the hole that leaves: a tool from a less
trusted source that says `replace` can be denied its say. Names that merely look alike are never merged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.core.tools import OnCollision
from gateway.governance.diagnostics import Position
from gateway.governance.globs import glob_matches
from gateway.governance.names import folded, skeleton

HonourTool = Literal["always", "sameOrHigherTrust", "never"]
Compare = Literal["exact", "folded"]
LookAlikes = Literal["throw", "ignore"]
Outcome = Literal["throw", "replace", "keep"]
NameKind = Literal["tool", "prompt", "resource"]
"""What two sources want to have: the name of a tool or of a prompt, or what URIs of a pattern lead to."""

FORGED_NAMES: Final = "artifact_*"
"""Belongs to forged query tools, whatever a policy reserves besides."""


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool as far as its name is concerned. `rank` is that of its tier: lower is more trusted."""

    name: str
    source: str
    rank: int
    position: Position
    on_collision: OnCollision = "throw"


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
    """Who gets the name: the incoming tool's opinion where it counts, the policy otherwise."""
    own = incoming.on_collision
    if own == "throw" or rules.honour_tool == "never":
        why = "the incoming tool has no opinion" if own == "throw" else "no tool has a say"
        return Collision(existing, incoming, rules.on_collision, f"the policy decides: {why}")
    if own == "replace" and rules.honour_tool == "sameOrHigherTrust" and incoming.rank > existing.rank:
        return Collision(existing, incoming, "throw", "a less trusted tool may not replace a more trusted one")
    return Collision(existing, incoming, own, f"the incoming tool says {own}")


def _is_reserved(name: str, rules: CollisionRules) -> bool:
    bare = name.casefold()
    return any(glob_matches(bare, pattern.casefold()) for pattern in (FORGED_NAMES, *rules.reserved))


def _look_alikes(tools: Sequence[NamedTool], rules: CollisionRules) -> Iterable[LookAlike]:
    first_of: dict[str, NamedTool] = {}
    for tool in tools if rules.look_alikes == "throw" else ():
        first = first_of.setdefault(skeleton(tool.name), tool)
        if first is not tool:
            yield LookAlike(first, tool)
