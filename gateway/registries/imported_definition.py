"""Definitions of an upstream: tools, prompts and resource templates as its server or OpenAPI document defines them.

A definition is stored completely, so that any change of it changes the digest. It does not contain trust settings.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, get_args

from gateway.registries.diagnostics import Position

DefinitionKind = Literal["tool", "prompt", "resourceTemplate"]

KINDS: Final[tuple[DefinitionKind, ...]] = get_args(DefinitionKind)
MAX_DEPTH: Final = 48
"""Maximum depth of a definition; real schemas have less."""

MAX_SIZE: Final = 256 << 10
"""Maximum size of a definition in characters of JSON, most of which would be sent to models."""

MAX_KEY: Final = 500
_NUMBERS: Final = range(-(1 << 63), 1 << 64)


class InvalidDefinition(ValueError):
    """The data of an upstream is not a valid definition."""


@dataclass(frozen=True, slots=True)
class UpstreamDefinition:
    """One definition of an upstream. `given` is the complete original data."""

    upstream: str
    name: str
    given: Mapping[str, Any]
    kind: DefinitionKind = "tool"
    is_pinned: bool = False
    """Whether the lock file has exactly this definition, from this source."""
    position: Position | None = None
    """Position in a file, if there is one."""
    locate: Callable[[tuple[str | int, ...]], Position] | None = field(default=None, compare=False, repr=False)
    """Returns the position of a part."""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hash_definition(self.kind, self.given))

    @classmethod
    def read(
        cls,
        upstream: str,
        given: Any,
        *,
        kind: DefinitionKind = "tool",
        is_pinned: bool = False,
        position: Position | None = None,
    ) -> "UpstreamDefinition":
        """Validate a definition of an upstream. Raises `InvalidDefinition`."""
        if not isinstance(given, Mapping):
            raise InvalidDefinition("it is not an object")
        _check_storable(given)
        name = given.get("name")
        if not isinstance(name, str) or not name:
            raise InvalidDefinition("it has no name")
        _check_types(given, kind)
        return cls(upstream, name, given, kind, is_pinned, position)

    @property
    def identity(self) -> str:
        """Its name in policies, independent of the name that a catalogue advertises."""
        return f"{self.upstream}.{self.name}"

    @property
    def title(self) -> str | None:
        return self.given.get("title")

    @property
    def description(self) -> str:
        return self.given.get("description") or ""

    @property
    def input_schema(self) -> Mapping[str, Any]:
        return self.given.get("inputSchema") or {"type": "object"}

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        return self.given.get("outputSchema")

    @property
    def requires_task(self) -> bool:
        """Whether servers of protocol version 2025-11-25 run it only as a task."""
        execution = self.given.get("execution")
        return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"

    @property
    def annotations(self) -> Mapping[str, Any]:
        """Claims of the server about it. They can only add effects."""
        return self.given.get("annotations") or {}


def build_tool_definition(
    upstream: str,
    name: str,
    description: str = "",
    input_schema: Mapping[str, Any] | None = None,
    *,
    is_pinned: bool = False,
) -> UpstreamDefinition:
    """Build a tool definition from its parts."""
    given = {"name": name, "description": description, "inputSchema": input_schema or {"type": "object"}}
    return UpstreamDefinition(upstream, name, given, is_pinned=is_pinned)


def hash_definition(kind: DefinitionKind, given: Mapping[str, Any]) -> str:
    """Return the SHA-256 hex digest of the kind and the definition as canonical JSON."""
    return sha256(to_canonical_text({"kind": kind, "definition": given}).encode("utf-8", "surrogatepass")).hexdigest()


def to_canonical_text(value: Any) -> str:
    """Return compact JSON with sorted keys and exact numbers."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_as_json
    )


def iter_texts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every text of a value with its path, including keys of objects."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield (*path, key), key
            yield from iter_texts(item, (*path, key))
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield from iter_texts(item, (*path, index))


def to_plain_data(value: Any) -> Any:
    """Return a copy in plain containers."""
    if isinstance(value, Mapping):
        return {key: to_plain_data(item) for key, item in value.items()}
    return [to_plain_data(item) for item in value] if isinstance(value, list | tuple) else value


def _as_json(value: Any) -> Any:
    """Convert the frozen mappings of snapshots."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is outside the JSON grammar")


def _check_types(given: Mapping[str, Any], kind: DefinitionKind) -> None:
    for key in ("title", "description"):
        if given.get(key) is not None and not isinstance(given[key], str):
            raise InvalidDefinition(f"its {key} is not a text")
    for key in ("inputSchema", "outputSchema", "annotations"):
        if given.get(key) is not None and not isinstance(given[key], Mapping):
            raise InvalidDefinition(f"its {key} is not an object")
    if kind == "resourceTemplate" and not isinstance(given.get("uriTemplate"), str):
        raise InvalidDefinition("it has no uriTemplate")


def _check_storable(given: Mapping[str, Any]) -> None:
    """Raise `InvalidDefinition` for data that a lock file cannot store exactly, or that is too large to review."""
    waiting: list[tuple[Any, int]] = [(given, 1)]
    size = 0
    while waiting:
        value, depth = waiting.pop()
        size += len(value) if isinstance(value, str) else 8
        if size > MAX_SIZE:
            raise InvalidDefinition(f"it is larger than {MAX_SIZE >> 10} KiB")
        if depth > MAX_DEPTH:
            raise InvalidDefinition(f"it is nested deeper than {MAX_DEPTH} levels")
        match value:
            case str():
                _check_surrogates(value)
            case bool() | None:
                pass
            case int():
                if value not in _NUMBERS:
                    raise InvalidDefinition("it has a number that is too large to be stored exactly")
            case float():
                if value != value or value in (float("inf"), float("-inf")):
                    raise InvalidDefinition("it has a number that JSON does not support")
            case Mapping():
                _check_keys(value)
                waiting += [(each, depth + 1) for each in (*value, *value.values())]
            case list() | tuple():
                waiting += [(each, depth + 1) for each in value]
            case _:
                raise InvalidDefinition(f"{type(value).__name__} is outside the JSON grammar")


def _check_keys(value: Mapping[Any, Any]) -> None:
    """Raise `InvalidDefinition` for a long key: YAML allows 1,024 characters, and an escape has up to ten."""
    if any(isinstance(key, str) and len(key) > (MAX_KEY if key.isascii() else MAX_KEY // 5) for key in value):
        raise InvalidDefinition(f"it has a key of more than {MAX_KEY} characters")


def _check_surrogates(text: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidDefinition("it has a lone surrogate, which a text file cannot store")
