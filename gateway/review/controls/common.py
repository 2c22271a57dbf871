"""How rules about weakened controls read specs: data without defaults, before and after."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.review.written import milliseconds

Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Weakness:
    """A code of the risk table, the field it is about, and what exactly, if the table's words do not say."""

    code: str
    path: str = ""
    note: str = ""


def at(spec: Any, path: str, default: Any = None) -> Any:
    """The value behind a dotted path, or what counts where nothing is written."""
    for key in path.split("."):
        if not isinstance(spec, Mapping) or key not in spec:
            return default
        spec = spec[key]
    return spec


def dropped(before: Spec, after: Spec, path: str) -> list[str]:
    """Entries of a list of words that are there no longer."""
    kept = set(at(after, path, ()))
    return [entry for entry in at(before, path, ()) if entry not in kept]


def added(before: Spec, after: Spec, path: str) -> list[str]:
    return dropped(after, before, path)


def differs(before: Spec, after: Spec, *paths: str) -> bool:
    return any(at(before, path) != at(after, path) for path in paths)


def is_longer(before: str | None, after: str | None) -> bool:
    """Whether a duration grew; none at all is the longest."""
    return _length(after) > _length(before)


def is_further(before: str | None, after: str | None, *, order: Sequence[str | None]) -> bool:
    """Whether a word stands further along the order; words that are not in it stand at its start."""
    places = [order.index(word) if word in order else 0 for word in (before, after)]
    return places[1] > places[0]


def is_more(before: float | None, after: float | None) -> bool:
    """Whether a limit grew; none at all is the highest."""
    return (float("inf") if after is None else after) > (float("inf") if before is None else before)


def listed(names: Iterable[str], *, most: int = 3) -> str:
    """The first names, and how many more there are."""
    every = list(names)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + rest


def _length(duration: str | None) -> float:
    return float("inf") if duration is None else milliseconds(duration)
