"""Finds grant policies that grant more: other roles, to other callers, by other approvers, for longer."""

from collections.abc import Iterator
from typing import Final

from gateway.review.weakened_controls.spec_comparison import (
    Spec,
    Weakness,
    find_added,
    is_longer,
    is_more,
    join_names,
    value_at_path,
)

_PERIOD: Final = "P1D"
_MAX_ACTIVE: Final = 5


def new_grant_policy(after: Spec) -> Iterator[Weakness]:
    yield Weakness("grant-policy-added", "", join_names(value_at_path(after, "roles", ())))


def weaker_grant_policy(before: Spec, after: Spec) -> Iterator[Weakness]:
    for path in ("roles", "to"):
        if names := find_added(before, after, path):
            yield Weakness("grant-widened", path, join_names(names))
    if names := find_added(before, after, "approvers"):
        yield Weakness("grant-approvers-widened", "approvers", join_names(names))
    if is_longer(value_at_path(before, "maxDuration"), value_at_path(after, "maxDuration")):
        yield Weakness("grant-longer", "maxDuration")
    if is_longer(_total(before), _total(after)):
        yield Weakness("grant-longer", "maxTotal")
    if is_longer(value_at_path(after, "period", _PERIOD), value_at_path(before, "period", _PERIOD)):
        yield Weakness("grant-longer", "period")  # the same total, more often
    if is_more(value_at_path(before, "maxActive", _MAX_ACTIVE), value_at_path(after, "maxActive", _MAX_ACTIVE)):
        yield Weakness("grant-longer", "maxActive")


def _total(spec: Spec) -> str | None:
    total: str | None = value_at_path(spec, "maxTotal", value_at_path(spec, "maxDuration"))
    return total
