"""Registry: a key-value store addressed by dotted paths, used for `meta`, `stash` and media stashes.

Containers are copied on the way in and on the way out, so neither side can change the other's
data. Objects that are not containers (a connection, a Media) are live: they are kept as they are.
"""

from itertools import pairwise
from typing import Any, Final

from gateway.errors import InvalidInitialRegistryValue

MAX_LIST_INDEX: Final = 9_999
"""A numeric segment past the end of a list fills the gap; this bounds how much one path can allocate."""

_IGNORED_SEGMENTS: Final = frozenset({"__proto__", "prototype", "constructor"})
_MISSING: Final = object()


class Registry:
    """Nested data behind `get`, `set`, `has`, `keys` and `all`.

    A key that itself contains a dot cannot be addressed: paths are always split.
    """

    __slots__ = ("_data", "_frozen")

    def __init__(self, initial: dict[str, Any] | None = None, *, frozen: bool = False) -> None:
        if initial is None:
            initial = {}
        if not isinstance(initial, dict) or not all(isinstance(key, str) for key in initial):
            raise InvalidInitialRegistryValue()
        self._data: dict[str, Any] = copy_containers(initial)
        self._frozen = frozen

    def get(self, path: str, default: Any = None) -> Any:
        """A copy of what is stored at `path`; `default` only where nothing is stored."""
        value = self._walk(path)
        return default if value is _MISSING else copy_containers(value)

    def set(self, path: str, value: Any) -> None:
        """Store a copy of `value`, creating the way to it and replacing scalars that stand in it.

        A path through `__proto__`, `prototype` or `constructor` is ignored: the data may
        end up in JavaScript, where such a key would change every object.
        """
        if self._frozen:
            raise TypeError("this registry is read-only")
        segments = path.split(".")
        if _IGNORED_SEGMENTS.intersection(segments):
            return
        _refuse_huge_indexes(segments)
        container: dict[str, Any] | list[Any] = self._data
        for segment, following in pairwise(segments):
            child = _child(container, segment)
            if not _accepts(child, following):
                child = [] if following.isdecimal() else {}
                _store(container, segment, child)
            container = child
        _store(container, segments[-1], copy_containers(value))

    def has(self, path: str) -> bool:
        return self._walk(path) is not _MISSING

    def keys(self) -> list[str]:
        """The path of every leaf. Lists are leaves; empty dicts contribute nothing."""
        return _leaf_paths(self._data, "")

    def all(self) -> dict[str, Any]:
        copied: dict[str, Any] = copy_containers(self._data)
        return copied

    def __repr__(self) -> str:
        return f"Registry(keys={self.keys()!r})"

    def _walk(self, path: str) -> Any:
        value: Any = self._data
        for segment in path.split("."):
            value = _child(value, segment)
            if value is _MISSING:
                break
        return value


def copy_containers(value: Any) -> Any:
    """Copy dicts, lists, tuples, sets and byte arrays at every depth; keep everything else as it is."""
    return _copy(value, {})


def _copy(value: Any, seen: dict[int, Any]) -> Any:
    kind = type(value)
    if kind not in (dict, list, tuple, set, bytearray):
        return value
    if id(value) in seen:
        return seen[id(value)]
    if kind is dict:
        copied: Any = {}
        seen[id(value)] = copied
        copied.update((key, _copy(item, seen)) for key, item in value.items())
    elif kind is list:
        copied = []
        seen[id(value)] = copied
        copied.extend(_copy(item, seen) for item in value)
    elif kind is tuple:
        copied = tuple(_copy(item, seen) for item in value)
    else:  # members of a set are hashable, those of a byte array are numbers
        copied = kind(value)
    return copied


def _child(container: Any, segment: str) -> Any:
    if isinstance(container, dict):
        return container.get(segment, _MISSING)
    if isinstance(container, list) and segment.isdecimal() and int(segment) < len(container):
        return container[int(segment)]
    return _MISSING


def _accepts(container: Any, segment: str) -> bool:
    return isinstance(container, dict) or (isinstance(container, list) and segment.isdecimal())


def _store(container: dict[str, Any] | list[Any], segment: str, value: Any) -> None:
    if isinstance(container, dict):
        container[segment] = value
        return
    index = int(segment)
    container.extend([None] * (index + 1 - len(container)))
    container[index] = value


def _refuse_huge_indexes(segments: list[str]) -> None:
    for segment in segments:
        if segment.isdecimal() and int(segment) > MAX_LIST_INDEX:
            raise ValueError(f"list index {segment!r} in a registry path is larger than {MAX_LIST_INDEX}")


def _leaf_paths(data: dict[str, Any], prefix: str) -> list[str]:
    paths: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict):
            paths += _leaf_paths(value, f"{prefix}{key}.")
        else:
            paths.append(prefix + key)
    return paths
