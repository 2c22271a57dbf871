"""Sums of an access review by caller and by tool, and the access that was not used, for tables and programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.review.access.access_review import AccessReview
from gateway.review.access.effective_access import CALL, AccessBlock
from gateway.review.access.usage import NEVER, ToolUse

ROLE: Final = "role:"
_TOOL: Final = "tool:"


@dataclass(slots=True)
class CallerSummary:
    """The access of a caller in a catalogue: how many objects it can see, call and so on, and how many it called."""

    caller: str
    catalogue: str
    counts: dict[str, int] = field(default_factory=dict)
    used: int = 0
    use: ToolUse = NEVER


@dataclass(slots=True)
class ObjectSummary:
    """The access to an object of a catalogue: how many callers and roles can do what, and how many called it."""

    catalogue: str
    object: str
    tier: str
    callers: dict[str, int] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    used_by: int = 0
    use: ToolUse = NEVER


@dataclass(frozen=True, slots=True)
class UnusedAccess:
    """Callers that can call these tools of a catalogue and called none of them within the period."""

    catalogue: str
    callers: tuple[str, ...]
    objects: tuple[str, ...]


def summarise_callers(review: AccessReview) -> list[CallerSummary]:
    """Return a summary for each caller and catalogue with access, by caller."""
    found: dict[tuple[str, str], CallerSummary] = {}
    for block in review.blocks:
        for caller in review.callers.list_names(block.callers):
            summary = found.get((caller, block.catalogue))
            if summary is None:
                summary = found[caller, block.catalogue] = CallerSummary(caller, block.catalogue)
            for action in block.actions:
                summary.counts[action] = summary.counts.get(action, 0) + len(block.objects)
    for caller, catalogue, _, use in _list_uses(review):
        if (summary := found.get((caller, catalogue))) is not None:
            summary.use += use
            summary.used += bool(use.count)
    return [found[key] for key in sorted(found)]


def summarise_objects(review: AccessReview) -> list[ObjectSummary]:
    """Return a summary for each object of each catalogue that a caller has access to."""
    found: dict[tuple[str, str], ObjectSummary] = {}
    for block in review.blocks:
        names = list(review.callers.list_names(block.callers))
        roles = sum(name.startswith(ROLE) for name in names)
        for object in block.objects:
            key = block.catalogue, object
            summary = found.setdefault(key, ObjectSummary(*key, block.tier))
            for action in block.actions:
                summary.roles[action] = summary.roles.get(action, 0) + roles
                summary.callers[action] = summary.callers.get(action, 0) + len(names) - roles
    for (catalogue, tool), use in review.uses.by_tool.items():
        if (catalogue, f"{_TOOL}{tool}") in found:
            found[catalogue, f"{_TOOL}{tool}"].use = use
    for (subject, catalogue, tool), use in review.uses.by_subject.items():
        if use.count and not subject.startswith(ROLE) and (catalogue, f"{_TOOL}{tool}") in found:
            found[catalogue, f"{_TOOL}{tool}"].used_by += 1
    return [found[key] for key in sorted(found)]


def list_unused_access(review: AccessReview) -> Iterator[UnusedAccess]:
    """Yield the access to call tools that was not used within the period; nothing if use is unknown."""
    if review.usage is None:
        return
    used: dict[tuple[str, str], set[str]] = {}
    for caller, catalogue, object, use in _list_uses(review):
        if use.count:
            used.setdefault((caller, catalogue), set()).add(object)
    for block in review.blocks:
        tools = tuple(each for each in block.objects if each.startswith(_TOOL)) if block.can(CALL) else ()
        left: dict[tuple[str, ...], list[str]] = {}
        for caller in review.callers.list_names(block.callers) if tools else ():
            mine = used.get((caller, block.catalogue))
            idle = tools if mine is None else tuple(each for each in tools if each not in mine)
            if idle:
                left.setdefault(idle, []).append(caller)
        yield from (UnusedAccess(block.catalogue, tuple(callers), objects) for objects, callers in left.items())


def _list_uses(review: AccessReview) -> Iterator[tuple[str, str, str, ToolUse]]:
    """Yield the recorded calls of each caller that it can still make: caller, catalogue, object and use."""
    names: dict[str, list[str]] = {}
    for name, principal in review.callers.principals.items():
        names.setdefault(principal.subject, []).append(name)
    callable_blocks = _index_callable(review.blocks)
    for (subject, catalogue, tool), use in review.uses.by_subject.items():
        object = f"{_TOOL}{tool}"
        blocks = callable_blocks.get((catalogue, object), ())
        for name in names.get(subject, ()) if blocks else ():
            bit = review.callers.find_mask(name)
            if any(bit & block.callers for block in blocks):
                yield name, catalogue, object, use


def _index_callable(blocks: Sequence[AccessBlock]) -> Mapping[tuple[str, str], list[AccessBlock]]:
    found: dict[tuple[str, str], list[AccessBlock]] = {}
    for block in blocks:
        if block.can(CALL):
            for object in block.objects:
                found.setdefault((block.catalogue, object), []).append(block)
    return found
