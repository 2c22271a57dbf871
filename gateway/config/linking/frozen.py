"""Values that cannot be changed any more: what everybody shares, nobody can edit by accident.

Mappings and lists stay `dict` and `list` for whoever reads them (JSON writers, schemas, CEL); what would change one
raises `TypeError`. A changeable copy is `dict(mapping)` for one level, `core.registry.copy_containers` for all.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


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

    def frozen(self, value: Any) -> Any:
        if not isinstance(value, dict | list | tuple) and (isinstance(value, type) or not is_dataclass(value)):
            return value
        if id(value) not in self._done:
            self._done[id(value)] = (value, self._copy(value))
        return self._done[id(value)][1]

    def _copy(self, value: Any) -> Any:
        match value:
            case dict():
                return FrozenDict({key: self.frozen(each) for key, each in value.items()})
            case list():
                return FrozenList(map(self.frozen, value))
            case tuple():
                copies = tuple(map(self.frozen, value))
                return value if _all_same(value, copies) else copies
        before = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        after = {name: self.frozen(each) for name, each in before.items()}
        return value if _all_same(before.values(), after.values()) else replace(value, **after)


def _all_same(before: Any, after: Any) -> bool:
    return all(old is new for old, new in zip(before, after, strict=True))
