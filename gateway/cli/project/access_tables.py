"""Tables of an access review: by caller, tool or role, for one caller or tool, of unused access, and of idle rows."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import Console

from gateway.cli.output import print_line, print_note, print_table
from gateway.model import CONFIG_OBJECT
from gateway.review import (
    AccessBlock,
    AccessReview,
    AttestedAccess,
    GrantAccess,
    PolicyRow,
    ToolUse,
    format_place,
    list_unused_access,
    summarise_callers,
    summarise_objects,
)

_TOOL: Final = "tool:"
_ROLE: Final = "role:"
_SHOWN: Final = 3
_DAY: Final = "%Y-%m-%d"


def print_review(console: Console, review: AccessReview, *, by: str, unused_only: bool, is_detailed: bool) -> None:
    """Print the access that is asked for. A complete review also names idle rows and callers without an owner."""
    _print_period(review)
    if unused_only:
        _print_unused(console, review, by=by)
    elif is_detailed:
        _print_details(console, review)
    elif by == "tool":
        _print_objects(console, review)
    else:
        _print_callers(console, review, only_roles=by == "role")
    if not is_detailed:
        _print_rows(console, "rows that were not used", review.unused_rows)
        if not unused_only:
            _print_rows(console, "rows that add nothing; they can be removed together", review.redundant_rows)
            _print_list(console, "agents and services without an owner", review.ownerless)
    _print_grants(console, review.grants or ())


def print_scope(console: Console, scope: Sequence[AttestedAccess]) -> None:
    """Print the access that an owner attests."""
    columns = ("catalogue", "may", "objects", "callers", "gates")
    rows = [
        [each.catalogue, ", ".join(each.actions), *map(", ".join, (_bare(each.objects), each.callers, each.gates))]
        for each in scope
    ]
    print_table(console, columns, rows)


def _print_period(review: AccessReview) -> None:
    usage = review.usage
    if usage is not None and not usage.covers_period:
        oldest = "has no record of a call" if usage.oldest is None else f"goes back to {usage.oldest:{_DAY}} only"
        print_note(f"the store {oldest}; what happened from {usage.since:{_DAY}} to then is unknown")


def _print_callers(console: Console, review: AccessReview, *, only_roles: bool) -> None:
    found = [each for each in summarise_callers(review) if each.caller.startswith(_ROLE) == only_roles]
    actions = ("see", "call", "read", "approve")
    columns = ("role" if only_roles else "caller", "catalogue", *actions, "config", *_use_columns(review))
    rows = [
        [
            each.caller,
            each.catalogue,
            *(_format_count(each.counts.get(action, 0)) for action in actions),
            ", ".join(action for action in ("administer", "observe") if each.counts.get(action)),
            *_use_cells(review, each.used, each.use),
        ]
        for each in found
    ]
    _print_or_note(console, columns, rows)


def _print_objects(console: Console, review: AccessReview) -> None:
    columns = ("tool", "catalogue", "tier", "callers", "roles", "readers", "approvers", *_use_columns(review))
    rows = [
        [
            each.object.removeprefix(_TOOL),
            each.catalogue,
            each.tier,
            _format_count(each.callers.get("call", 0)),
            _format_count(each.roles.get("call", 0)),
            _format_count(each.callers.get("read", 0)),
            _format_count(each.callers.get("approve", 0)),
            *_use_cells(review, each.used_by, each.use),
        ]
        for each in summarise_objects(review)
        if each.object != CONFIG_OBJECT
    ]
    _print_or_note(console, columns, rows)


def _print_details(console: Console, review: AccessReview) -> None:
    columns = ("caller", "catalogue", "tool", "may", "up to", "row", "gates", *_use_columns(review)[1:])
    rows = [
        [
            caller,
            block.catalogue,
            object.removeprefix(_TOOL),
            ", ".join(block.actions),
            ", ".join(dict.fromkeys(right.row.tier for right in block.rights if right.row)),
            ", ".join(dict.fromkeys(format_place(right.row.position) for right in block.rights if right.row)),
            ", ".join(_format_gates(block)),
            *_use_cells(review, 0, _find_use(review, caller, block.catalogue, object))[1:],
        ]
        for block in review.blocks
        for caller in sorted(review.callers.list_names(block.callers))
        for object in block.objects
    ]
    _print_or_note(console, columns, sorted(rows))


def _print_unused(console: Console, review: AccessReview, *, by: str) -> None:
    """Print the tools that each caller or role can call and did not, or the callers that did not call each tool."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in list_unused_access(review):
        names = [name for name in each.callers if name.startswith(_ROLE) == (by == "role")]
        objects = _bare(each.objects)
        firsts, others = (objects, names) if by == "tool" else (names, objects)
        for first in firsts if others else ():
            found.setdefault((first, each.catalogue), []).extend(others)
    rows = [
        [first, catalogue, str(len(others)), _format_some(sorted(others))]
        for (first, catalogue), others in sorted(found.items())
    ]
    columns = (by, "catalogue", "unused", "callers" if by == "tool" else "tools")
    if rows:
        print_table(console, columns, rows)
    else:
        print_note("all access to call a tool was used")


def _print_rows(console: Console, title: str, rows: Sequence[PolicyRow]) -> None:
    if rows:
        print_line(console)
        print_line(console, (f"{title}:", "bold"))
        print_table(console, ("row", "what it says"), [[format_place(row.position), str(row)] for row in rows])


def _print_grants(console: Console, grants: Sequence[GrantAccess]) -> None:
    if grants:
        print_line(console)
        print_line(console, ("access that grants add, until they end:", "bold"))
        print_table(console, ("caller", "role", "until", "grant", "adds"), [_grant_cells(each) for each in grants])


def _grant_cells(found: GrantAccess) -> list[str]:
    grant = found.grant
    until = "" if grant.until is None else f"{grant.until:%Y-%m-%d %H:%MZ}"
    adds = _format_some([f"{each.action} {each.tool} in {each.catalogue}" for each in found.adds])
    return [grant.subject, grant.role, until, grant.id, (adds or "nothing") if found.is_in_force else "nothing now"]


def _print_list(console: Console, title: str, names: Sequence[str]) -> None:
    if names:
        print_line(console)
        print_line(console, (f"{title}:", "bold"), f" {', '.join(names)}")


def _print_or_note(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        print_table(console, columns, rows)
    else:
        print_note("there is no access to show")


def _use_columns(review: AccessReview) -> tuple[str, ...]:
    return () if review.usage is None else ("used", "calls", "last call")


def _use_cells(review: AccessReview, used: int, use: ToolUse) -> tuple[str, ...]:
    if review.usage is None:
        return ()
    return _format_count(used), _format_count(use.count), "never" if use.last is None else _format_day(use.last)


def _find_use(review: AccessReview, caller: str, catalogue: str, object: str) -> ToolUse:
    subject = review.callers.principals[caller].subject
    return review.uses.find(subject, catalogue, object.removeprefix(_TOOL))


def _format_gates(block: AccessBlock) -> Iterator[str]:
    for gate in block.gates:
        words = {"hold": "holds", "deny": "denies"}[gate.decision] if gate.is_certain else f"may {gate.decision}"
        yield f"{gate.rule} {words}"


def _format_some(names: Sequence[str]) -> str:
    left = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {left} more" if left > 0 else "")


def _format_count(count: int) -> str:
    return f"{count:,}" if count else ""


def _format_day(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):{_DAY}}"


def _bare(objects: Iterable[str]) -> list[str]:
    return [each.removeprefix(_TOOL) for each in objects]
