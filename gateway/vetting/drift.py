"""What changed between two definitions of the same thing, part by part and graded, for whoever decides about it.

High is what could turn a tool against its callers, medium what they should know, low the rest.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from gateway.governance.imports import ImportedDefinition
from gateway.governance.unseen import hidden_in
from gateway.vetting.phrases import phrase_in

Grade = Literal["high", "medium", "low"]
GRADES: Final[tuple[Grade, ...]] = ("high", "medium", "low")

_ADDRESS: Final = re.compile(r"\b(?:https?|wss?|ftp|file)://[^\s\"'<>)\]}]+|\b(?:javascript|data):\S+", re.IGNORECASE)
_HINTS: Final = frozenset({"destructiveHint", "readOnlyHint", "idempotentHint", "openWorldHint"})
_SCHEMA_WORDS: Final = frozenset({"title", "description", "examples", "$comment", "deprecated"})
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `what` is a word for programs, `words` a sentence for people, `path` where it is."""

    upstream: str
    kind: str
    name: str
    what: str
    grade: Grade
    words: str
    path: str = ""
    before: Any = None
    after: Any = None

    @property
    def about(self) -> str:
        return f"{self.kind} {self.upstream}.{self.name}"

    def as_data(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def drift(locked: Iterable[ImportedDefinition], found: Iterable[ImportedDefinition]) -> list[Change]:
    """Everything that differs between what was locked and what is there, the gravest of each definition first."""
    before = {(each.upstream, each.kind, each.name): each for each in locked}
    after = {(each.upstream, each.kind, each.name): each for each in found}
    changes: list[Change] = []
    for key in sorted(before.keys() | after.keys()):
        changes += sorted(_between(before.get(key), after.get(key)), key=lambda each: GRADES.index(each.grade))
    return changes


def gravest(changes: Iterable[Change]) -> Grade | None:
    return min((each.grade for each in changes), key=GRADES.index, default=None)


def _between(before: ImportedDefinition | None, after: ImportedDefinition | None) -> Iterator[Change]:
    if before is None:
        assert after is not None, "one of them is there"  # noqa: S101 - keys come from both
        yield _change(after, "added", "medium", "it is new, and is not served until it is locked")
    elif after is None:
        yield _change(before, "removed", "medium", "its server does not have it any more")
    elif before.digest != after.digest:
        yield from _differences(before, after)


def _differences(before: ImportedDefinition, after: ImportedDefinition) -> Iterator[Change]:
    changes = [
        *_texts(before, after, ("title", "description")),
        *_hints(before, after),
        *_schemas(before, after, "inputSchema"),
        *_schemas(before, after, "outputSchema"),
        *_rest(before, after),
    ]
    yield from changes or [_change(after, "changed", "low", "it is written differently")]


def _texts(before: ImportedDefinition, after: ImportedDefinition, keys: Sequence[str]) -> Iterator[Change]:
    for key in keys:
        old, new = before.given.get(key) or "", after.given.get(key) or ""
        if old != new:
            yield from _text(after, key, key, old, new)


def _text(definition: ImportedDefinition, key: str, path: str, old: str, new: str) -> Iterator[Change]:
    """A text that changed: graded by what is in it now that was not there."""
    if addresses := set(_ADDRESS.findall(new)) - set(_ADDRESS.findall(old)):
        words = f"its {key} has a new address: {min(addresses)}"
        yield _change(definition, "address-added", "high", words, path, old, new)
    if (phrase := phrase_in(new)) is not None and phrase_in(old) != phrase:
        words = f"its {key} now tells the model {phrase[0].says}"
        yield _change(definition, "instruction-added", "high", words, path, old, new)
    if any(True for _ in hidden_in(new)) and not any(True for _ in hidden_in(old)):
        words = f"its {key} now has characters that nobody sees"
        yield _change(definition, "hidden-text-added", "high", words, path, old, new)
    yield _change(definition, f"{key}-changed", "medium", f"its {key} reads differently", path, old, new)


def _hints(before: ImportedDefinition, after: ImportedDefinition) -> Iterator[Change]:
    old, new = before.annotations, after.annotations
    for key in sorted(old.keys() | new.keys()):
        if old.get(key, _ABSENT) == new.get(key, _ABSENT):
            continue
        path = f"annotations.{key}"
        if key in _HINTS:
            words = f"its {key} is {_shown(new.get(key))}, and was {_shown(old.get(key))}"
            yield _change(after, "hint-flipped", "high", words, path, old.get(key), new.get(key))
        else:
            yield from _text(after, key, path, str(old.get(key, "")), str(new.get(key, "")))


def _schemas(before: ImportedDefinition, after: ImportedDefinition, key: str) -> Iterator[Change]:
    old, new = before.given.get(key) or {}, after.given.get(key) or {}
    if old != new:
        is_input = key == "inputSchema"
        yield from _parameters(after, old, new, key, is_input=is_input)


def _parameters(
    definition: ImportedDefinition, old: Mapping[str, Any], new: Mapping[str, Any], path: str, *, is_input: bool
) -> Iterator[Change]:
    """Properties of an object and everything below them. What callers are asked for weighs more than what they get."""
    grade: Grade = "medium" if is_input else "low"
    what = "parameter" if is_input else "field"
    ours, theirs = _properties(old), _properties(new)
    for name in sorted(ours.keys() | theirs.keys()):
        place = f"{path}.properties.{name}"
        if name not in ours:
            needed = " that callers must give" if name in _required(new) else ""
            words = f"it has a new {what} {name!r}{needed}"
            yield _change(definition, f"{what}-added", grade, words, place, None, theirs[name])
            yield from _poisoned(definition, {}, theirs[name], place)
        elif name not in theirs:
            yield _change(definition, f"{what}-removed", grade, f"its {what} {name!r} is gone", place, ours[name], None)
        elif ours[name] != theirs[name]:
            yield from _property(definition, name, ours[name], theirs[name], place, is_input=is_input)
    yield from _requirements(definition, old, new, path, what=what, known=ours.keys() & theirs.keys())
    yield from _constraints(definition, old, new, path, grade)


def _property(
    definition: ImportedDefinition, name: str, old: Any, new: Any, path: str, *, is_input: bool
) -> Iterator[Change]:
    yield from _poisoned(definition, old, new, path)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _parameters(definition, old, new, path, is_input=is_input)
    else:
        grade: Grade = "medium" if is_input else "low"
        yield _change(definition, "schema-changed", grade, f"{name!r} is checked differently", path, old, new)


def _poisoned(definition: ImportedDefinition, old: Any, new: Any, path: str) -> Iterator[Change]:
    """Addresses and words to the model that came into a schema's own texts."""
    for key in ("title", "description", "default"):
        before, after = (each.get(key) if isinstance(each, Mapping) else None for each in (old, new))
        if isinstance(after, str) and before != after:
            found = _text(definition, key, f"{path}.{key}", before if isinstance(before, str) else "", after)
            yield from (each for each in found if each.grade == "high")


def _requirements(
    definition: ImportedDefinition,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    path: str,
    *,
    what: str,
    known: Iterable[str],
) -> Iterator[Change]:
    for name in sorted(known):
        was, is_now = name in _required(old), name in _required(new)
        if was != is_now:
            change, words = ("narrowed", "must be given now") if is_now else ("widened", "may be left out now")
            yield _change(definition, f"schema-{change}", "low", f"its {what} {name!r} {words}", f"{path}.required")


def _constraints(
    definition: ImportedDefinition, old: Mapping[str, Any], new: Mapping[str, Any], path: str, grade: Grade
) -> Iterator[Change]:
    for key in sorted({*old, *new} - {"properties", "required"}):
        before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if before == after:
            continue
        given = (f"{path}.{key}", _given(before), _given(after))
        if key in _SCHEMA_WORDS:
            yield _change(definition, "schema-words-changed", "low", f"its {key} reads differently", *given)
            continue
        direction = _direction(key, before, after)
        weight: Grade = "low" if direction == "narrowed" else grade
        yield _change(definition, f"schema-{direction}", weight, f"what {key} lets through is {direction}", *given)


def _direction(key: str, before: Any, after: Any) -> Literal["widened", "narrowed", "changed"]:
    """Whether more values fit than before, or fewer; `changed` where that cannot be told."""
    if key == "additionalProperties" and after is not _ABSENT:  # what is not told is closed by us
        return "widened" if after is not False else "narrowed"
    if before is _ABSENT:
        return "narrowed" if key not in ("default", "properties") else "changed"
    if after is _ABSENT:
        return "widened" if key not in ("default", "properties") else "changed"
    if key in _LOWER and _are_numbers(before, after):
        return "widened" if after < before else "narrowed"
    if key in _UPPER and _are_numbers(before, after):
        return "widened" if after > before else "narrowed"
    if key in ("enum", "type"):
        old, new = (set(map(repr, each if isinstance(each, list) else [each])) for each in (before, after))
        return "widened" if old < new else "narrowed" if new < old else "changed"
    return "changed"


def _rest(before: ImportedDefinition, after: ImportedDefinition) -> Iterator[Change]:
    known = {"title", "description", "inputSchema", "outputSchema", "annotations"}
    for key in sorted({*before.given, *after.given} - known):
        old, new = before.given.get(key), after.given.get(key)
        if old == new:
            continue
        if key == "_meta" and _request(old) != _request(new):
            words = "a call of it becomes another request"
            yield _change(after, "request-changed", "high", words, key, _request(old), _request(new))
        else:
            yield _change(after, "changed", "low", f"its {key} is different", key, old, new)


def _request(meta: Any) -> Any:
    return meta.get("gateway/request") if isinstance(meta, Mapping) else None


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _required(schema: Mapping[str, Any]) -> Sequence[Any]:
    found = schema.get("required")
    return found if isinstance(found, list | tuple) else ()


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _given(value: Any) -> Any:
    return None if value is _ABSENT else value


def _shown(value: Any) -> str:
    return "not told" if value is None else str(value).lower()


def _change(
    definition: ImportedDefinition,
    what: str,
    grade: Grade,
    words: str,
    path: str = "",
    before: Any = None,
    after: Any = None,
) -> Change:
    return Change(definition.upstream, definition.kind, definition.name, what, grade, words, path, before, after)
