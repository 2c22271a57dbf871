"""Name collisions: which of two tools gets a name, decided by the collision policy.

The incoming tool decides first, then the policy. In any case, a tool never takes the name of a more trusted tool, nor
of a tool of the same tier that can do less. Names that only look alike are never merged.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.model import OnCollision, confusable_skeleton, fold_name, glob_matches
from gateway.registries.diagnostics import Position
from gateway.registries.tool_flags import Effects

HonourTool = Literal["always", "sameOrHigherTrust", "never"]
Compare = Literal["exact", "folded"]
LookAlikes = Literal["throw", "ignore"]
CollisionOutcome = Literal["throw", "replace", "keep"]
NameKind = Literal["tool", "prompt", "resource"]
"""What two sources share: the name of a tool, the name of a prompt, or URIs of resources."""

RESERVED_QUERY_TOOLS: Final = "artifact_*"
"""Names of forged query tools, which are always reserved, with any separator."""

_SEPARATORS: Final = str.maketrans("-.", "__")


@dataclass(frozen=True, slots=True)
class NamedTool:
    """A tool with the properties that decide collisions. `rank` is that of its tier: lower is more trusted."""

    name: str
    source: str
    rank: int
    position: Position
    on_collision: OnCollision = "throw"
    trusted: bool = False
    effects: Effects = "declared"
    flags: frozenset[str] = frozenset()
    is_imported: bool = False
    """Whether it is imported from an upstream."""


@dataclass(frozen=True, slots=True)
class CollisionRules:
    """A collision policy. Sources are merged in the given order."""

    on_collision: OnCollision = "throw"
    honour_tool: HonourTool = "sameOrHigherTrust"
    compare: Compare = "folded"
    look_alikes: LookAlikes = "throw"
    reserved: tuple[str, ...] = ()

    def key(self, name: str) -> str:
        return fold_name(name) if self.compare == "folded" else name


@dataclass(frozen=True, slots=True)
class Collision:
    """Two tools or prompts with the same name, or two resource groups with the same URI, and the outcome."""

    existing: NamedTool
    incoming: NamedTool
    outcome: CollisionOutcome
    reason: str
    kind: NameKind = "tool"
    is_about_trust: bool = False
    """Whether trust rules refused the outcome that the tool or the policy selected."""

    @property
    def is_error(self) -> bool:
        return self.outcome == "throw"


@dataclass(frozen=True, slots=True)
class LookAlike:
    """Two different names that look the same."""

    first: NamedTool
    second: NamedTool


@dataclass(frozen=True, slots=True)
class MergedTools:
    """The remaining tools in order, with collisions, look-alikes and reserved names."""

    tools: tuple[NamedTool, ...]
    collisions: tuple[Collision, ...] = ()
    look_alikes: tuple[LookAlike, ...] = ()
    reserved: tuple[NamedTool, ...] = ()


def merge_tools(tools: Iterable[NamedTool], rules: CollisionRules) -> MergedTools:
    """Merge tools in order. A refused tool is left out; a replaced tool passes on its place."""
    by_key: dict[str, NamedTool] = {}
    collisions: list[Collision] = []
    reserved: list[NamedTool] = []
    for incoming in tools:
        if _is_reserved(incoming.name, rules):
            reserved.append(incoming)
            continue
        key = rules.key(incoming.name)
        if key in by_key:
            collision = resolve_collision(by_key[key], incoming, rules)
            collisions.append(collision)
            if collision.outcome != "replace":
                continue
        by_key[key] = incoming
    remaining = tuple(by_key.values())
    return MergedTools(remaining, tuple(collisions), tuple(_look_alikes(remaining, rules)), tuple(reserved))


def resolve_collision(existing: NamedTool, incoming: NamedTool, rules: CollisionRules) -> Collision:
    """Decide a collision: by the incoming tool if allowed, else by the policy. Trust rules override both."""
    own = incoming.on_collision
    if own == "throw" or rules.honour_tool == "never":
        wanted = rules.on_collision
        reason = f"the policy decides: {'the incoming tool has no opinion' if own == 'throw' else 'honourTool: never'}"
    else:
        wanted, reason = own, f"the incoming tool has onCollision: {own}"
    refusal = _find_refusal(existing, incoming, wanted)
    if refusal is not None:
        return Collision(existing, incoming, "throw", refusal, is_about_trust=True)
    return Collision(existing, incoming, wanted, reason)


def find_lower_trust(one: NamedTool, other: NamedTool) -> str | None:
    """Return why one tool is less trusted than the other, or `None`. The tier is compared first."""
    if one.rank != other.rank:
        return "its tier is less trusted" if one.rank > other.rank else None
    if one.trusted != other.trusted:
        return None if one.trusted else "its results are not trusted"
    if one.effects == "unknown" != other.effects:
        return "its effects are unknown"
    return None


def _find_refusal(existing: NamedTool, incoming: NamedTool, wanted: CollisionOutcome) -> str | None:
    """Return why trust rules refuse the outcome, or `None`. They override every policy and order."""
    if wanted == "replace":
        if why := find_lower_trust(incoming, existing):
            return f"a less trusted tool may not replace a more trusted one: {why}"
        if incoming.rank == existing.rank and (more := incoming.flags - existing.flags):
            return f"a tool may not replace one of the same tier that can do less: it adds {', '.join(sorted(more))}"
    if wanted == "keep" and (why := find_lower_trust(existing, incoming)):
        return f"a less trusted tool may not keep a name from a more trusted one: {why}"
    return None


def _is_reserved(name: str, rules: CollisionRules) -> bool:
    spellings = {name.casefold(), name.casefold().translate(_SEPARATORS)}
    patterns = [pattern.casefold() for pattern in (RESERVED_QUERY_TOOLS, *rules.reserved)]
    return any(glob_matches(spelling, pattern) for spelling in spellings for pattern in patterns)


def _look_alikes(tools: Sequence[NamedTool], rules: CollisionRules) -> Iterable[LookAlike]:
    first_of: dict[str, NamedTool] = {}
    for tool in tools if rules.look_alikes == "throw" else ():
        first = first_of.setdefault(confusable_skeleton(tool.name), tool)
        if first is not tool:
            yield LookAlike(first, tool)
