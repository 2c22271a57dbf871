"""Values that cannot be changed any more: what everybody shares, nobody can edit by accident.

Mappings and lists stay `dict` and `list` for whoever reads them (JSON writers, schemas, CEL); what would change one
raises `TypeError`. A changeable copy is `dict(mapping)` for one level, `core.registry.copy_containers` for all.
"""

from dataclasses import fields, is_dataclass, replace
from operator import is_
from typing import Any, Final, NoReturn, TypeVar

from gateway.governance.diagnostics import Position

T = TypeVar("T")

_UNCHANGEABLE: Final = frozenset({str, int, float, bool, type(None), frozenset, type, Position})


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("this belongs to a snapshot and cannot be changed; change a copy")


class FrozenDict(dict[Any, Any]):
    """A mapping that stays as it was made."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __copy__(self) -> "FrozenDict":
        return self

    def __deepcopy__(self, memo: object) -> "FrozenDict":
        return self


class FrozenList(list[Any]):
    """A list that stays as it was made."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __copy__(self) -> "FrozenList":
        return self

    def __deepcopy__(self, memo: object) -> "FrozenList":
        return self


def frozen(value: T) -> T:
    """The same value with every mapping and list in it frozen, through tuples and frozen dataclasses, too."""
    done: T = _Freezing().frozen(value)
    return done


class _Freezing:
    """One pass. What is shared stays shared, so that a tier is frozen once and not once per tool."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[object, Any]] = {}
        """By identity, with the value itself: as long as it lives, no other has its identity."""
        self._fields: dict[type, tuple[str, ...]] = {}
        """Of every class that was met; none for what is no dataclass."""

    def frozen(self, value: Any) -> Any:
        kind = type(value)
        if kind in _UNCHANGEABLE:  # most of a snapshot
            return value
        if id(value) not in self._done:
            self._done[id(value)] = (value, self._copy(value, kind))
        return self._done[id(value)][1]

    def _copy(self, value: Any, kind: type) -> Any:
        if issubclass(kind, dict):
            return FrozenDict({key: self.frozen(each) for key, each in value.items()})
        if issubclass(kind, list):
            return FrozenList(map(self.frozen, value))
        if kind is tuple:
            copies = tuple(map(self.frozen, value))
            return value if all(map(is_, value, copies)) else copies
        changed = {}
        for name in self._names(kind):
            before = getattr(value, name)
            after = self.frozen(before)
            if after is not before:
                changed[name] = after
        return replace(value, **changed) if changed else value

    def _names(self, kind: type) -> tuple[str, ...]:
        if kind not in self._fields:
            names = (field.name for field in fields(kind) if field.init) if is_dataclass(kind) else ()
            self._fields[kind] = tuple(names)
        return self._fields[kind]
