"""Containers: `DottedDict`, addressed by dotted paths, immutable dicts and lists, and `Immutable`, a base class.

`DottedDict` holds `meta`, `stash` and media stashes. It copies containers on `set` and on `get`, so neither side can
change the other's data; a subclass of dict or list becomes a plain one. Objects that are not containers (a connection,
a Media) are stored by reference.

`freeze` makes values immutable that all requests share. Mappings and lists remain `dict` and `list` subclasses for
readers (JSON writers, schemas, CEL); every mutating method raises `TypeError`. Use `dict(mapping)` for a mutable copy
of one level.
"""

from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from operator import is_
from typing import Any, Final, NoReturn, Self, TypeVar

from gateway.errors import InvalidInitialRegistryValue
from gateway.model.primitives.canonical_json import MAX_DEPTH


class Immutable:
    """A base class whose attributes can only be set by `_decide`, in the constructor. A copy is the object itself."""

    __slots__ = ()

    def _decide(self, **values: Any) -> None:
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __setattr__(self, key: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is immutable; {key!r} cannot be set")

    def __delattr__(self, key: str) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is immutable; {key!r} cannot be deleted")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


MAX_LIST_INDEX: Final = 9_999
"""Limits how much one path can allocate: a list is filled up to a numeric segment past its end."""

_IGNORED_SEGMENTS: Final = frozenset({"__proto__", "prototype", "constructor"})
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_PLAIN: Final = frozenset({dict, list})
_CONTAINERS: Final = (dict, list, tuple, set, bytearray)
_INDEX_DIGITS: Final = 12
"""Enough digits to recognise a number that is too large, without converting thousands of them."""
_MISSING: Final = object()


class DottedDict:
    """Nested data behind `get`, `set`, `has`, `keys` and `all`.

    A key that contains a dot cannot be addressed: paths are always split at dots.
    """

    __slots__ = ("_data", "_frozen")

    def __init__(self, initial: dict[str, Any] | None = None, *, frozen: bool = False) -> None:
        if initial is None:
            self._data: dict[str, Any] = {}
            self._frozen = frozen
            return
        if not isinstance(initial, dict) or not all(isinstance(key, str) for key in initial):
            raise InvalidInitialRegistryValue()
        try:
            self._data = deep_copy_containers(initial)
        except ValueError as error:
            raise InvalidInitialRegistryValue(str(error)) from error
        self._frozen = frozen

    def copy(self) -> "DottedDict":
        """Return an independent copy, which is not frozen."""
        copied = DottedDict()
        if self._data:
            copied._data = deep_copy_containers(self._data)
        return copied

    def get(self, path: str, default: Any = None) -> Any:
        """Return a copy of the value at `path`, or `default` if there is none."""
        value = self._walk(path)
        return default if value is _MISSING else deep_copy_containers(value)

    def set(self, path: str, value: Any) -> None:
        """Store a copy of `value`, creating containers along the path and replacing scalars in it.

        A path through `__proto__`, `prototype` or `constructor` is ignored: the data may
        end up in JavaScript, where such a key would change every object. A path that needs
        too large a list or too deep a nesting raises `ValueError` and changes nothing.
        """
        if self._frozen:
            raise TypeError("this registry is read-only")
        segments = path.split(".")
        if _IGNORED_SEGMENTS.intersection(segments):
            return
        if len(segments) > MAX_DEPTH:
            raise ValueError(f"a registry path has at most {MAX_DEPTH} segments")
        copied = _copy(value, {}, len(segments))
        container: Any = self._data
        last = segments[-1]
        for position, (segment, following) in enumerate(pairwise(segments), start=1):
            child = _child(container, segment)
            if not _accepts(child, following):
                copied, last = _build_containers(segments[position:], copied), segment
                break
            container = child
        _store(container, last, copied)

    def has(self, path: str) -> bool:
        return self._walk(path) is not _MISSING

    def keys(self) -> list[str]:
        """Return the path of every leaf. Lists are leaves; empty dicts are left out."""
        return _leaf_paths(self._data, "", set())

    def all(self) -> dict[str, Any]:
        copied: dict[str, Any] = deep_copy_containers(self._data)
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


def deep_copy_containers(value: Any) -> Any:
    """Copy dicts, lists, tuples, sets and byte arrays at every depth; other objects are not copied.

    Shared and cyclic references are preserved. Raises `ValueError` past `MAX_DEPTH`.
    """
    if type(value) is dict and _SCALARS.issuperset(map(type, value.values())):
        return value.copy()  # most arguments are flat
    return _copy(value, {}, 0) if isinstance(value, _CONTAINERS) else value


def _copy(value: Any, seen: dict[int, Any], depth: int) -> Any:
    kind = type(value)
    if kind in _SCALARS:
        return value
    if id(value) in seen:
        return seen[id(value)]
    if depth > MAX_DEPTH:
        raise ValueError(f"the value is nested deeper than {MAX_DEPTH} levels")
    copied: Any = value
    if kind in _PLAIN and _SCALARS.issuperset(map(type, value.values() if kind is dict else value)):
        copied = seen[id(value)] = value.copy()
    elif isinstance(value, dict):
        copied = seen[id(value)] = {}
        for key, item in value.items():
            copied[key] = _copy(item, seen, depth + 1)
    elif isinstance(value, list) or kind is tuple:
        copied = []
        if kind is not tuple:
            seen[id(value)] = copied
        for item in value:  # no comprehension: its frame would double the stack
            copied.append(_copy(item, seen, depth + 1))
        if kind is tuple:
            copied = seen[id(value)] = tuple(copied)
    elif kind is set or kind is bytearray:  # members of a set are hashable, those of a byte array are numbers
        copied = seen[id(value)] = kind(value)
    return copied


def _child(container: Any, segment: str) -> Any:
    if isinstance(container, dict):
        return container.get(segment, _MISSING)
    if isinstance(container, list) and (index := _index(segment)) is not None and index < len(container):
        return container[index]
    return _MISSING


def _accepts(container: Any, segment: str) -> bool:
    return isinstance(container, dict) or (isinstance(container, list) and _index(segment) is not None)


def _build_containers(segments: list[str], value: Any) -> Any:
    """Return new containers around `value`: a list where a segment is a number, else a dict."""
    for segment in reversed(segments):
        container: dict[str, Any] | list[Any] = {} if _index(segment) is None else []
        _store(container, segment, value)
        value = container
    return value


def _store(container: dict[str, Any] | list[Any], segment: str, value: Any) -> None:
    if isinstance(container, dict):
        container[segment] = value
        return
    index = int(segment[:_INDEX_DIGITS])
    if index > MAX_LIST_INDEX:
        raise ValueError(f"a list index in a registry path is larger than {MAX_LIST_INDEX}")
    container.extend([None] * (index + 1 - len(container)))
    container[index] = value


def _index(segment: str) -> int | None:
    """Return the list index of a segment as JavaScript reads it, or `None`: `01` and `٣` are names."""
    if not (segment.isascii() and segment.isdecimal()) or (segment[0] == "0" and segment != "0"):
        return None
    return int(segment[:_INDEX_DIGITS])


def _leaf_paths(data: dict[Any, Any], prefix: str, trail: set[int]) -> list[str]:
    """Return the paths of all leaves. `trail` has the ids of the enclosing dicts: a dict inside itself is a leaf."""
    paths: list[str] = []
    trail.add(id(data))
    for key, value in data.items():
        if isinstance(value, dict) and id(value) not in trail:
            paths += _leaf_paths(value, f"{prefix}{key}.", trail)
        else:
            paths.append(f"{prefix}{key}")
    trail.discard(id(data))
    return paths


T = TypeVar("T")

_UNCHANGEABLE: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None), frozenset, type})


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("this object belongs to a snapshot and cannot be changed; change a copy")


class FrozenDict(dict[Any, Any]):
    """An immutable mapping."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> "FrozenDict":
        return self

    def __deepcopy__(self, memo: object) -> "FrozenDict":
        return self


class FrozenList(list[Any]):
    """An immutable list."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> "FrozenList":
        return self

    def __deepcopy__(self, memo: object) -> "FrozenList":
        return self


def freeze(value: T, *, unchangeable: frozenset[type] = frozenset()) -> T:
    """Return the value with every mapping and list in it frozen, also inside tuples and frozen dataclasses.

    Objects of the `unchangeable` classes hold neither, so they are not searched.
    """
    done: T = _Freezer(_UNCHANGEABLE | unchangeable).freeze_value(value)
    return done


class _Freezer:
    """One pass. Shared values stay shared, so that a tier is frozen once and not once per tool."""

    def __init__(self, unchangeable: frozenset[type]) -> None:
        self._unchangeable = unchangeable
        self._done: dict[int, tuple[object, Any]] = {}
        """Frozen values by identity. Each entry holds the original, so that its identity is not reused."""
        self._fields: dict[type, tuple[str, ...]] = {}
        """Field names by class; empty for classes that are no dataclass."""

    def freeze_value(self, value: Any) -> Any:
        kind = type(value)
        if kind in self._unchangeable:  # most of a snapshot
            return value
        if id(value) not in self._done:
            self._done[id(value)] = (value, self._copy(value, kind))
        return self._done[id(value)][1]

    def _copy(self, value: Any, kind: type) -> Any:
        if issubclass(kind, dict):
            freeze, unchangeable = self.freeze_value, self._unchangeable
            return FrozenDict(
                {key: each if type(each) in unchangeable else freeze(each) for key, each in value.items()}
            )
        if issubclass(kind, list):
            return FrozenList(map(self.freeze_value, value))
        if kind is tuple:
            copies = tuple(map(self.freeze_value, value))
            return value if all(map(is_, value, copies)) else copies
        changed = {}
        for name in self._names(kind):
            before = getattr(value, name)
            after = self.freeze_value(before)
            if after is not before:
                changed[name] = after
        return replace(value, **changed) if changed else value

    def _names(self, kind: type) -> tuple[str, ...]:
        if kind not in self._fields:
            names = (field.name for field in fields(kind) if field.init) if is_dataclass(kind) else ()
            self._fields[kind] = tuple(names)
        return self._fields[kind]
