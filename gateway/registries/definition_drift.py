"""Compare two versions of a definition part by part, and grade each change for the reviewer.

High: the change could turn a tool against its callers. Medium: callers should know it. Low: everything else.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from gateway.registries.definition_scan import find_hidden_characters, find_phrase
from gateway.registries.imported_definition import UpstreamDefinition

ChangeSeverity = Literal["high", "medium", "low"]
CHANGE_SEVERITIES: Final[tuple[ChangeSeverity, ...]] = ("high", "medium", "low")

_ADDRESS: Final = re.compile(r"\b(?:https?|wss?|ftp|file)://[^\s\"'<>)\]}]+|\b(?:javascript|data):\S+", re.IGNORECASE)
_HINTS: Final = frozenset({"destructiveHint", "readOnlyHint", "idempotentHint", "openWorldHint"})
_SCHEMA_WORDS: Final = frozenset({"title", "description", "examples", "$comment", "deprecated"})
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """One change. `what` is a code for programs, `words` a sentence for people, `path` its place."""

    upstream: str
    kind: str
    name: str
    what: str
    grade: ChangeSeverity
    words: str
    path: str = ""
    before: Any = None
    after: Any = None

    @property
    def about(self) -> str:
        return f"{self.kind} {self.upstream}.{self.name}"

    def to_dict(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def compare_definitions(
    locked: Iterable[UpstreamDefinition], found: Iterable[UpstreamDefinition]
) -> list[DefinitionChange]:
    """Return all changes between locked and current definitions, the most severe of each definition first."""
    before = {(each.upstream, each.kind, each.name): each for each in locked}
    after = {(each.upstream, each.kind, each.name): each for each in found}
    changes: list[DefinitionChange] = []
    for key in sorted(before.keys() | after.keys()):
        changes += sorted(
            _compare(before.get(key), after.get(key)), key=lambda each: CHANGE_SEVERITIES.index(each.grade)
        )
    return changes


def highest_severity(changes: Iterable[DefinitionChange]) -> ChangeSeverity | None:
    return min((each.grade for each in changes), key=CHANGE_SEVERITIES.index, default=None)


def _compare(before: UpstreamDefinition | None, after: UpstreamDefinition | None) -> Iterator[DefinitionChange]:
    if before is None:
        assert after is not None, "one of them exists"  # noqa: S101 - keys come from both
        yield _change(after, "added", "medium", "it is new and is not served until it is locked")
    elif after is None:
        yield _change(before, "removed", "medium", "the server no longer has it")
    elif before.digest != after.digest:
        yield from _find_changes(before, after)


def _find_changes(before: UpstreamDefinition, after: UpstreamDefinition) -> Iterator[DefinitionChange]:
    changes = [
        *_texts(before, after, ("title", "description")),
        *_compare_hints(before, after),
        *_compare_schemas(before, after, "inputSchema"),
        *_compare_schemas(before, after, "outputSchema"),
        *_compare_rest(before, after),
    ]
    yield from changes or [_change(after, "changed", "low", "it has changed")]


def _texts(before: UpstreamDefinition, after: UpstreamDefinition, keys: Sequence[str]) -> Iterator[DefinitionChange]:
    for key in keys:
        old, new = before.given.get(key) or "", after.given.get(key) or ""
        if old != new:
            yield from _diff_text(after, key, key, old, new)


def _diff_text(definition: UpstreamDefinition, key: str, path: str, old: str, new: str) -> Iterator[DefinitionChange]:
    """Yield the change of a text, graded by what is new in it."""
    if addresses := set(_ADDRESS.findall(new)) - set(_ADDRESS.findall(old)):
        words = f"its {key} has a new URL: {min(addresses)}"
        yield _change(definition, "address-added", "high", words, path, old, new)
    if (phrase := find_phrase(new)) is not None and find_phrase(old) != phrase:
        words = f"its {key} now instructs the model {phrase[0].says}"
        yield _change(definition, "instruction-added", "high", words, path, old, new)
    if any(True for _ in find_hidden_characters(new)) and not any(True for _ in find_hidden_characters(old)):
        words = f"its {key} now has invisible characters"
        yield _change(definition, "hidden-text-added", "high", words, path, old, new)
    yield _change(definition, f"{key}-changed", "medium", f"its {key} has changed", path, old, new)


def _compare_hints(before: UpstreamDefinition, after: UpstreamDefinition) -> Iterator[DefinitionChange]:
    old, new = before.annotations, after.annotations
    for key in sorted(old.keys() | new.keys()):
        if old.get(key, _ABSENT) == new.get(key, _ABSENT):
            continue
        path = f"annotations.{key}"
        if key in _HINTS:
            words = f"its {key} has changed from {_to_text(old.get(key))} to {_to_text(new.get(key))}"
            yield _change(after, "hint-flipped", "high", words, path, old.get(key), new.get(key))
        else:
            yield from _diff_text(after, key, path, str(old.get(key, "")), str(new.get(key, "")))


def _compare_schemas(before: UpstreamDefinition, after: UpstreamDefinition, key: str) -> Iterator[DefinitionChange]:
    old, new = before.given.get(key) or {}, after.given.get(key) or {}
    if old != new:
        is_input = key == "inputSchema"
        yield from _compare_properties(after, old, new, key, is_input=is_input)


def _compare_properties(
    definition: UpstreamDefinition, old: Mapping[str, Any], new: Mapping[str, Any], path: str, *, is_input: bool
) -> Iterator[DefinitionChange]:
    """Yield changes of the properties of an object, recursively. Inputs are graded higher than outputs."""
    grade: ChangeSeverity = "medium" if is_input else "low"
    what = "parameter" if is_input else "field"
    ours, theirs = _properties(old), _properties(new)
    for name in sorted(ours.keys() | theirs.keys()):
        place = f"{path}.properties.{name}"
        if name not in ours:
            needed = " that callers must set" if name in _required_names(new) else ""
            words = f"it has a new {what} {name!r}{needed}"
            yield _change(definition, f"{what}-added", grade, words, place, None, theirs[name])
            yield from _find_injections(definition, {}, theirs[name], place)
        elif name not in theirs:
            yield _change(definition, f"{what}-removed", grade, f"its {what} {name!r} is gone", place, ours[name], None)
        elif ours[name] != theirs[name]:
            yield from _compare_property(definition, name, ours[name], theirs[name], place, is_input=is_input)
    yield from _compare_required(definition, old, new, path, what=what, known=ours.keys() & theirs.keys())
    yield from _compare_constraints(definition, old, new, path, grade)


def _compare_property(
    definition: UpstreamDefinition, name: str, old: Any, new: Any, path: str, *, is_input: bool
) -> Iterator[DefinitionChange]:
    yield from _find_injections(definition, old, new, path)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _compare_properties(definition, old, new, path, is_input=is_input)
    else:
        grade: ChangeSeverity = "medium" if is_input else "low"
        yield _change(definition, "schema-changed", grade, f"the schema of {name!r} has changed", path, old, new)


def _find_injections(definition: UpstreamDefinition, old: Any, new: Any, path: str) -> Iterator[DefinitionChange]:
    """Yield new URLs, instructions and hidden characters in the texts of a schema."""
    for key in ("title", "description", "default"):
        before, after = (each.get(key) if isinstance(each, Mapping) else None for each in (old, new))
        if isinstance(after, str) and before != after:
            found = _diff_text(definition, key, f"{path}.{key}", before if isinstance(before, str) else "", after)
            yield from (each for each in found if each.grade == "high")


def _compare_required(
    definition: UpstreamDefinition,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    path: str,
    *,
    what: str,
    known: Iterable[str],
) -> Iterator[DefinitionChange]:
    for name in sorted(known):
        was, is_now = name in _required_names(old), name in _required_names(new)
        if was != is_now:
            change, words = ("narrowed", "is now required") if is_now else ("widened", "is now optional")
            yield _change(definition, f"schema-{change}", "low", f"its {what} {name!r} {words}", f"{path}.required")


def _compare_constraints(
    definition: UpstreamDefinition, old: Mapping[str, Any], new: Mapping[str, Any], path: str, grade: ChangeSeverity
) -> Iterator[DefinitionChange]:
    for key in sorted({*old, *new} - {"properties", "required"}):
        before, after = old.get(key, _ABSENT), new.get(key, _ABSENT)
        if before == after:
            continue
        given = (f"{path}.{key}", _none_if_absent(before), _none_if_absent(after))
        if key in _SCHEMA_WORDS:
            yield _change(definition, "schema-words-changed", "low", f"its {key} has changed", *given)
            continue
        direction = _direction(key, before, after)
        weight: ChangeSeverity = "low" if direction == "narrowed" else grade
        yield _change(definition, f"schema-{direction}", weight, f"its {key} is {direction}", *given)


def _direction(key: str, before: Any, after: Any) -> Literal["widened", "narrowed", "changed"]:
    """Return whether more or fewer values match than before; `changed` if that is unknown."""
    if key == "additionalProperties" and after is not _ABSENT:  # the gateway closes a schema without it
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


def _compare_rest(before: UpstreamDefinition, after: UpstreamDefinition) -> Iterator[DefinitionChange]:
    known = {"title", "description", "inputSchema", "outputSchema", "annotations"}
    for key in sorted({*before.given, *after.given} - known):
        old, new = before.given.get(key), after.given.get(key)
        if old == new:
            continue
        if key == "_meta" and _request(old) != _request(new):
            words = "a call now sends a different request"
            yield _change(after, "request-changed", "high", words, key, _request(old), _request(new))
        else:
            yield _change(after, "changed", "low", f"its {key} has changed", key, old, new)


def _request(meta: Any) -> Any:
    return meta.get("gateway/request") if isinstance(meta, Mapping) else None


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _required_names(schema: Mapping[str, Any]) -> Sequence[Any]:
    found = schema.get("required")
    return found if isinstance(found, list | tuple) else ()


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _none_if_absent(value: Any) -> Any:
    return None if value is _ABSENT else value


def _to_text(value: Any) -> str:
    return "not set" if value is None else str(value).lower()


def _change(
    definition: UpstreamDefinition,
    what: str,
    grade: ChangeSeverity,
    words: str,
    path: str = "",
    before: Any = None,
    after: Any = None,
) -> DefinitionChange:
    return DefinitionChange(
        definition.upstream, definition.kind, definition.name, what, grade, words, path, before, after
    )
