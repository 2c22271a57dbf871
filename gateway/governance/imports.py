"""What an upstream brings: tools, prompts and resource templates as their server, or its document, defines them.

A definition is kept whole, so that a change of one byte anywhere in it is another digest. Nothing in it says how far
it is trusted, and nothing here knows where it is read or kept.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal, get_args

from gateway.governance.diagnostics import Position

DefinitionKind = Literal["tool", "prompt", "resourceTemplate"]

KINDS: Final[tuple[DefinitionKind, ...]] = get_args(DefinitionKind)
MAX_DEPTH: Final = 48
"""Levels of a definition; schemas that people write have fewer."""

MAX_SIZE: Final = 256 << 10
"""Characters of a definition as JSON; a model would be told most of them."""

MAX_KEY: Final = 500
_NUMBERS: Final = range(-(1 << 63), 1 << 64)


class BadDefinition(ValueError):
    """What an upstream gave is no definition that could be kept; the message says why."""


@dataclass(frozen=True, slots=True)
class ImportedDefinition:
    """One definition of an upstream. `given` is all of it, as it came."""

    upstream: str
    name: str
    given: Mapping[str, Any]
    kind: DefinitionKind = "tool"
    is_pinned: bool = False
    """Whether the lock file has exactly this definition, from this place."""
    position: Position | None = None
    """Where it stands in a file, if it does."""
    locate: Callable[[tuple[str | int, ...]], Position] | None = field(default=None, compare=False, repr=False)
    """Where a part of it stands."""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(self.kind, self.given))

    @classmethod
    def read(
        cls,
        upstream: str,
        given: Any,
        *,
        kind: DefinitionKind = "tool",
        is_pinned: bool = False,
        position: Position | None = None,
    ) -> "ImportedDefinition":
        """A definition as an upstream gave it. Raises `BadDefinition`."""
        if not isinstance(given, Mapping):
            raise BadDefinition("it is not an object")
        _refuse_unkeepable(given)
        name = given.get("name")
        if not isinstance(name, str) or not name:
            raise BadDefinition("it has no name")
        _refuse_wrong_types(given, kind)
        return cls(upstream, name, given, kind, is_pinned, position)

    @property
    def identity(self) -> str:
        """What policies call it, whatever name a catalogue advertises it under."""
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
    def needs_task(self) -> bool:
        """Whether servers of 2025-11-25 run it as a task only."""
        execution = self.given.get("execution")
        return isinstance(execution, Mapping) and execution.get("taskSupport") == "required"

    @property
    def annotations(self) -> Mapping[str, Any]:
        """What its server claims of it. Governance does not read them."""
        return self.given.get("annotations") or {}


def imported_tool(
    upstream: str,
    name: str,
    description: str = "",
    input_schema: Mapping[str, Any] | None = None,
    *,
    is_pinned: bool = False,
) -> ImportedDefinition:
    """A tool from its parts."""
    given = {"name": name, "description": description, "inputSchema": input_schema or {"type": "object"}}
    return ImportedDefinition(upstream, name, given, is_pinned=is_pinned)


def digest_of(kind: DefinitionKind, given: Mapping[str, Any]) -> str:
    """SHA-256, in hexadecimal digits, over compact JSON with sorted keys of the kind and the whole definition."""
    return sha256(written({"kind": kind, "definition": given}).encode("utf-8", "surrogatepass")).hexdigest()


def written(value: Any) -> str:
    """Compact JSON with sorted keys; no number loses a digit."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_as_json
    )


def texts_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text of a value with its path, keys of objects among them."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield (*path, key), key
            yield from texts_in(item, (*path, key))
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            yield from texts_in(item, (*path, index))


def plain(value: Any) -> Any:
    """A copy in plain containers."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def _as_json(value: Any) -> Any:
    """Snapshots hold frozen mappings and tuples."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is outside the JSON grammar")


def _refuse_wrong_types(given: Mapping[str, Any], kind: DefinitionKind) -> None:
    for key in ("title", "description"):
        if given.get(key) is not None and not isinstance(given[key], str):
            raise BadDefinition(f"its {key} is not a text")
    for key in ("inputSchema", "outputSchema", "annotations"):
        if given.get(key) is not None and not isinstance(given[key], Mapping):
            raise BadDefinition(f"its {key} is not an object")
    if kind == "resourceTemplate" and not isinstance(given.get("uriTemplate"), str):
        raise BadDefinition("it has no uriTemplate")


def _refuse_unkeepable(given: Mapping[str, Any]) -> None:
    """What a file of text could not give back as it was, and what nobody could review."""
    waiting: list[tuple[Any, int]] = [(given, 1)]
    size = 0
    while waiting:
        value, depth = waiting.pop()
        size += len(value) if isinstance(value, str) else 8
        if size > MAX_SIZE:
            raise BadDefinition(f"it is larger than {MAX_SIZE >> 10} KiB")
        if depth > MAX_DEPTH:
            raise BadDefinition(f"it is nested deeper than {MAX_DEPTH} levels")
        match value:
            case str():
                _refuse_surrogates(value)
            case bool() | None:
                pass
            case int():
                if value not in _NUMBERS:
                    raise BadDefinition("it has a number that is too large to be kept exactly")
            case float():
                if value != value or value in (float("inf"), float("-inf")):
                    raise BadDefinition("it has a number that JSON does not have")
            case Mapping():
                _refuse_long_keys(value)
                waiting += [(each, depth + 1) for each in (*value, *value.values())]
            case list() | tuple():
                waiting += [(each, depth + 1) for each in value]
            case _:
                raise BadDefinition(f"{type(value).__name__} is outside the JSON grammar")


def _refuse_long_keys(value: Mapping[Any, Any]) -> None:
    """YAML takes keys of up to 1,024 characters, and an escape has up to ten."""
    if any(isinstance(key, str) and len(key) > (MAX_KEY if key.isascii() else MAX_KEY // 5) for key in value):
        raise BadDefinition(f"it has a key of more than {MAX_KEY} characters")


def _refuse_surrogates(text: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise BadDefinition("it has half of a character, which no file of text can hold")
