"""Callers and arguments of a call as people type them: `amount=900` becomes a number where the schema asks for one."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.cli.output import fail
from gateway.errors import ValidationException
from gateway.model import OF_CALLER, SUBJECT_KINDS, SUBJECT_NAME_REGEX, Principal, Schema, Subschemas, coerce
from gateway.registries import DeclaredTool, Query, suggest_name
from gateway.server import NotStrictJson, strict_json

_SUBJECT: Final = re.compile(rf"(?:{'|'.join(SUBJECT_KINDS)}):{SUBJECT_NAME_REGEX}")
_ROLE: Final = re.compile(rf"role:{SUBJECT_NAME_REGEX}")


def parse_caller(subject: str | None, roles: list[str] | None) -> Principal | None:
    """Return the principal that was named. Policies add the roles that they grant to the subject and to its roles."""
    if subject is None:
        if roles:
            fail("--role needs --as", "name the caller who has the role: --as user:ana")
        return None
    if not _SUBJECT.fullmatch(subject):
        fail(f"{subject!r} is not a subject", "write one with its prefix: user:ana, agent:bot, service:billing")
    for role in roles or ():
        if not _ROLE.fullmatch(role):
            fail(f"{role!r} is not a role", "write it with its prefix: role:clerk")
    return Principal(subject, frozenset(roles or ()))


def parse_arguments(tool: DeclaredTool | Query | None, pairs: Sequence[str], text: str | None) -> dict[str, Any]:
    """Return the arguments from `key=value` pairs and a JSON object. Values that do not fit the schema stay text."""
    from_json = parse_json_object(text) if text is not None else {}
    typed = _split_pairs(pairs)
    if twice := sorted(from_json.keys() & typed.keys()):
        fail(f"the argument {twice[0]!r} is given twice", "give it in --with or in --args, not in both")
    document = tool.input_schema if tool is not None else None
    if tool is not None and document is not None:
        _refuse_unknown(tool, document, [*from_json, *typed])
    return {**from_json, **(_convert_by_schema(document, typed) if document else _convert_by_syntax(typed))}


def parse_json_object(text: str) -> dict[str, Any]:
    try:
        value = strict_json(text.encode("utf-8", "surrogateescape"))
    except NotStrictJson as error:
        fail(f"--args cannot be read: {error}", "write a JSON object: '{\"amount\": 900}'")
    if not isinstance(value, dict):
        fail("--args is not a JSON object", "write one: '{\"amount\": 900}'")
    return value


def _split_pairs(pairs: Sequence[str]) -> dict[str, str]:
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
            fail(f"{tool.name} takes no argument {name!r}", suggest_name(name, known) or takes)


def _convert_by_schema(document: Mapping[str, Any], typed: Mapping[str, str]) -> dict[str, Any]:
    schema = Schema(dict(document))
    scalars = coerce(Subschemas(schema.describe()), dict(typed))
    return {name: _parse_nested(schema, name, value) for name, value in scalars.items()}


def _parse_nested(schema: Schema, name: str, value: Any) -> Any:
    """Return the value, parsed as JSON where the schema wants a list, an object or null instead of text."""
    if not isinstance(value, str) or _fits(schema, name, value):
        return value
    parsed = _parse_or_keep(value)
    return parsed if isinstance(parsed, dict | list) or value.strip() == "null" else value


def _fits(schema: Schema, name: str, value: Any) -> bool:
    try:
        schema.check({name: value})
    except ValidationException as error:
        return all(list(problem["path"])[:1] not in ([name], [OF_CALLER]) for problem in error.details)
    return True


def _convert_by_syntax(typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments without a schema: text that is valid JSON is parsed."""
    return {name: _parse_or_keep(text) for name, text in typed.items()}


def _parse_or_keep(text: str) -> Any:
    try:
        return strict_json(text.encode("utf-8", "surrogateescape"))
    except NotStrictJson:
        return text
