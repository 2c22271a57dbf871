"""Immutable: values that are decided once, in their constructor."""

from typing import Any, NoReturn, Self


class Immutable:
    """Refuses to set or delete attributes; the constructor uses `_decide`. A copy is the value itself."""

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
