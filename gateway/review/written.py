"""Values of a document as people wrote them: what the environment filled in is shown as the reference in the file.

What was left out is shown as its default. Comparing is done on what documents mean, elsewhere.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Path = tuple[str | int, ...]

_ISO: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))


class Missing:
    """Neither written nor given by a default."""

    def __repr__(self) -> str:
        return "(none)"


MISSING: Final = Missing()


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Written:
    """How one document stands in its file. `references` are the texts in which `${NAME}` was filled in."""

    data: Mapping[str, Any]
    references: Mapping[Path, str] = field(default_factory=dict)
    defaults: Callable[[], Mapping[str, Any]] = _nothing

    def at(self, path: Path) -> Any:
        found = value_at(self.data, path)
        if not isinstance(found, Missing):
            return self._unfilled(found, path)
        default = value_at(self.defaults(), path)
        return MISSING if default is None or default in ([], {}, ()) else _worded(default)

    def _unfilled(self, value: Any, path: Path) -> Any:
        if path in self.references:
            return self.references[path]
        match value:
            case dict():
                return {key: self._unfilled(each, (*path, key)) for key, each in value.items()}
            case list() | tuple():
                return [self._unfilled(each, (*path, index)) for index, each in enumerate(value)]
        return value


def value_at(data: Any, path: Path) -> Any:
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return data


def milliseconds(duration: str) -> float:
    """A duration of the normalised data, `PT30M`; what cannot be read lasts for ever."""
    match = _ISO.fullmatch(duration)
    if match is None or duration == "P":
        return float("inf")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000


def _worded(value: Any) -> Any:
    """A default as somebody would have written it."""
    if not isinstance(value, str) or not _ISO.fullmatch(value) or value == "P":
        return value
    total = round(milliseconds(value))
    size, unit = next((size, unit) for size, unit in _UNITS if total % size == 0)
    return f"{total // size}{unit}"
