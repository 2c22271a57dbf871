"""Arguments of a call as people type them: `amount=900` becomes a number where the tool's schema asks for one."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.cli.console import fail
from gateway.core.schema_coercion import coerced
from gateway.core.schema_document import Subschemas
from gateway.core.schema_problems import OF_CALLER
from gateway.core.schemas import Schema
from gateway.errors import ValidationException
from gateway.governance.diagnostics import did_you_mean
from gateway.snapshot import DeclaredTool, Query
from gateway.web.bodies import NotStrictJson, strict_json


def typed_arguments(tool: DeclaredTool | Query | None, pairs: Sequence[str], text: str | None) -> dict[str, Any]:
    """The arguments from `key=value` pairs and from a JSON object. What does not fit the schema is left as typed."""
    given = json_object(text) if text is not None else {}
    typed = _pairs(pairs)
    if twice := sorted(given.keys() & typed.keys()):
        fail(f"the argument {twice[0]!r} is given twice", "name it in --with or in --args, not in both")
    document = tool.input_schema if tool is not None else None
    if tool is not None and document is not None:
        _refuse_unknown(tool, document, [*given, *typed])
    return {**given, **(_by_schema(document, typed) if document else _by_look(typed))}


def json_object(text: str) -> dict[str, Any]:
    try:
        value = strict_json(text.encode("utf-8", "surrogateescape"))
    except NotStrictJson as error:
        fail(f"--args cannot be read: {error}", "write a JSON object: '{\"amount\": 900}'")
    if not isinstance(value, dict):
        fail("--args is not a JSON object", "write one: '{\"amount\": 900}'")
    return value


def _pairs(pairs: Sequence[str]) -> dict[str, str]:
    typed: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            fail(f"{pair!r} is not an argument", "write --with key=value")
        if key in typed:
            fail(f"the argument {key!r} is given twice")
        typed[key] = text
    return typed


def _refuse_unknown(tool: DeclaredTool | Query, document: Mapping[str, Any], names: Sequence[str]) -> None:
    known = document.get("properties", {})
    if document.get("additionalProperties") is not False or "patternProperties" in document:
        return
    for name in names:
        if name not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            fail(f"{tool.name} takes no argument {name!r}", did_you_mean(name, known) or takes)


def _by_schema(document: Mapping[str, Any], typed: Mapping[str, str]) -> dict[str, Any]:
    schema = Schema(dict(document))
    scalars = coerced(Subschemas(schema.describe()), dict(typed))
    return {name: _nested(schema, name, value) for name, value in scalars.items()}


def _nested(schema: Schema, name: str, value: Any) -> Any:
    """The value, or what it is as JSON, where the schema wants no text but a list, an object or nothing."""
    if not isinstance(value, str) or _fits(schema, name, value):
        return value
    parsed = _parsed(value)
    return parsed if isinstance(parsed, dict | list) or value.strip() == "null" else value


def _fits(schema: Schema, name: str, value: Any) -> bool:
    try:
        schema.accepted({name: value})
    except ValidationException as error:
        return all(list(problem["path"])[:1] not in ([name], [OF_CALLER]) for problem in error.details)
    return True


def _by_look(typed: Mapping[str, str]) -> dict[str, Any]:
    """Without a schema, what reads as JSON is JSON."""
    return {name: _parsed(text) for name, text in typed.items()}


def _parsed(text: str) -> Any:
    try:
        return strict_json(text.encode("utf-8", "surrogateescape"))
    except NotStrictJson:
        return text
