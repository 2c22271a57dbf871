"""Whether one schema allows no more than another, as far as that can be known by looking.

A document may show callers less than an upstream takes, never more. Where the two are written so differently that
nobody can tell, nothing is said: the upstream judges the call itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gateway.governance.shaping import Path, Shaping, accepts

Problem = tuple[Path, str]
"""Where in our schema, and what it allows that the upstream refuses."""

_LOWER: Final = ("minimum", "minLength", "minItems")
_BOUNDS: Final = (*_LOWER, "maximum", "maxLength", "maxItems")
_MAX_DEPTH: Final = 12


def wider_parts(ours: Mapping[str, Any], theirs: Mapping[str, Any], shaping: Shaping) -> Iterator[Problem]:
    """Every place where arguments that our schema allows are refused by the upstream's, or are missing there."""
    names = {shaping.ours(name): name for name in theirs.get("properties", {}) if name not in shaping.removed}
    mine: Mapping[str, Any] = ours.get("properties", {})
    is_closed = theirs.get("additionalProperties") is False or theirs.get("unevaluatedProperties") is False
    for name, schema in mine.items():
        path: Path = ("properties", name)
        if name in shaping.removed and name not in names:
            yield path, f"{name!r} is fixed or hidden, so no caller may give it"
        elif name in names:
            yield from _wider(schema, theirs["properties"][names[name]], path, roots=(ours, theirs), depth=0)
        elif is_closed:
            yield path, f"the upstream's tool takes no {name!r}"
    for name, remote in names.items():
        needed = remote in theirs.get("required", ()) and remote not in shaping.defaults
        if needed and not _is_always_given(name, ours):
            yield ("required",) if "required" in ours else (), f"the upstream needs {name!r}, which may be missing"


def _is_always_given(name: str, ours: Mapping[str, Any]) -> bool:
    schema = ours.get("properties", {}).get(name)
    return name in ours.get("required", ()) or (isinstance(schema, Mapping) and "default" in schema)


def _wider(
    ours: Any, theirs: Any, path: Path, *, roots: tuple[Mapping[str, Any], Mapping[str, Any]], depth: int
) -> Iterator[Problem]:
    ours, theirs = _target(ours, roots[0]), _target(theirs, roots[1])
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping) or depth > _MAX_DEPTH:
        return
    listed = _listed(ours)
    if listed is not None:
        for path_to, value in listed:
            if not accepts(theirs, value, root=roots[1]):
                yield (*path, *path_to), "the upstream's tool refuses this value"
        return
    if "enum" in theirs or "const" in theirs:
        yield path, "the upstream's tool takes listed values only"
        return
    yield from _wider_types(ours, theirs, path)
    yield from _wider_bounds(ours, theirs, path)
    if "pattern" in theirs and "pattern" not in ours and _may_be("string", ours):
        yield path, "the upstream's tool asks for a pattern"
    yield from _wider_below(ours, theirs, path, roots=roots, depth=depth)


def _wider_types(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    if "type" not in theirs:
        return
    taken = _types(theirs)
    if "type" not in ours:
        if not any(key in ours for key in ("allOf", "anyOf", "oneOf")):
            yield path, f"the upstream's tool takes only {_spoken(taken)}"
    elif further := _types(ours) - taken - ({"integer"} if "number" in taken else set()):
        yield (*path, "type"), f"the upstream's tool takes {_spoken(taken)}, not {_spoken(further)}"


def _wider_bounds(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    for keyword in _BOUNDS:
        bound, mine = theirs.get(keyword), ours.get(keyword)
        if not _is_number(bound) or _exclusive(ours, keyword):
            continue
        if mine is None and (not _concerns(keyword, ours) or (keyword in _LOWER and bound == 0)):
            continue
        if mine is None or not _is_number(mine) or (mine < bound if keyword in _LOWER else mine > bound):
            yield path if mine is None else (*path, keyword), f"the upstream's tool asks for {keyword} {bound}"


def _wider_below(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    path: Path,
    *,
    roots: tuple[Mapping[str, Any], Mapping[str, Any]],
    depth: int,
) -> Iterator[Problem]:
    if "items" in ours and "items" in theirs:
        yield from _wider(ours["items"], theirs["items"], (*path, "items"), roots=roots, depth=depth + 1)
    known = theirs.get("properties", {})
    for name, schema in ours.get("properties", {}).items():
        below: Path = (*path, "properties", name)
        if name in known:
            yield from _wider(schema, known[name], below, roots=roots, depth=depth + 1)
        elif theirs.get("additionalProperties") is False:
            yield below, f"the upstream's tool takes no {name!r} here"


def _listed(ours: Mapping[str, Any]) -> list[tuple[Path, Any]] | None:
    if "const" in ours:
        return [(("const",), ours["const"])]
    if isinstance(ours.get("enum"), list | tuple):
        return [(("enum", index), value) for index, value in enumerate(ours["enum"])]
    return None


def _target(schema: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(32):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        found: Any = root
        for step in str(schema["$ref"]).removeprefix("#").split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        schema = found
    return None


def _types(schema: Mapping[str, Any]) -> set[str]:
    given = schema["type"]
    return {given} if isinstance(given, str) else set(given)


def _may_be(kind: str, schema: Mapping[str, Any]) -> bool:
    return "type" not in schema or kind in _types(schema)


def _concerns(keyword: str, ours: Mapping[str, Any]) -> bool:
    if "Length" in keyword:
        return _may_be("string", ours)
    if "Items" in keyword:
        return _may_be("array", ours)
    return _may_be("number", ours) or _may_be("integer", ours)


def _exclusive(ours: Mapping[str, Any], keyword: str) -> bool:
    """An exclusive bound is another way to write one, which is not compared."""
    return keyword in ("minimum", "maximum") and f"exclusive{keyword.capitalize()}" in ours


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _spoken(kinds: set[str]) -> str:
    return " or ".join(sorted(kinds))
