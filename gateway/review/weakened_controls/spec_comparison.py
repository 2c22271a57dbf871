"""Compares specs before and after a change, for the rules about weaker controls. Specs are data without defaults."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from gateway.review.plan.document_changes import milliseconds

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Weakness:
    """A code of the risk table, the field it is about, and a note if the table's text is not enough."""

    code: str
    path: str = ""
    note: str = ""


def value_at_path(spec: Any, path: str, default: Any = None) -> Any:
    """Return the value at a dotted path, or `default` if it is not set."""
    for key in path.split("."):
        if not isinstance(spec, Mapping) or key not in spec:
            return default
        spec = spec[key]
    return spec


def find_removed(before: Spec, after: Spec, path: str) -> list[str]:
    """Return the entries of a list at `path` that are missing after the change."""
    present = set(value_at_path(after, path, ()))
    return [entry for entry in value_at_path(before, path, ()) if entry not in present]


def find_added(before: Spec, after: Spec, path: str) -> list[str]:
    return find_removed(after, before, path)


def is_different(before: Spec, after: Spec, *paths: str) -> bool:
    return any(value_at_path(before, path) != value_at_path(after, path) for path in paths)


def is_longer(before: str | None, after: str | None) -> bool:
    """Whether a duration grew; `None` is the longest."""
    return _length(after) > _length(before)


def is_later_in_order(before: str | None, after: str | None, *, order: Sequence[str | None]) -> bool:
    """Whether `after` comes later in the order than `before`; words that are not in it count as its first."""
    places = [order.index(word) if word in order else 0 for word in (before, after)]
    return places[1] > places[0]


def is_more(before: float | None, after: float | None) -> bool:
    """Whether a limit grew; `None` is the highest."""
    return (float("inf") if after is None else after) > (float("inf") if before is None else before)


def join_names(names: Iterable[str], *, most: int = 3) -> str:
    """Join the first names, and append how many more there are."""
    every = list(names)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest


def _length(duration: str | None) -> float:
    return float("inf") if duration is None else milliseconds(duration)


def wider_networks(before: Spec, after: Spec, path: str) -> Iterator[Weakness]:
    """Yield private networks that a tool or an upstream can newly reach; subnets of old networks are not new."""
    old = [ip_network(each) for each in value_at_path(before, path, ())]
    if new := [each for each in value_at_path(after, path, ()) if not _is_within(ip_network(each), old)]:
        yield Weakness("network-widened", path, ", ".join(new))


def _is_within(network: Any, known: list[Any]) -> bool:
    return any(network.version == each.version and network.subnet_of(each) for each in known)
