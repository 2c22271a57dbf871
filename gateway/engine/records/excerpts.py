"""Excerpts of the arguments of refused calls: enough to distinguish calls, never everything that a caller sends.

Values are shown only of arguments that the tool declares and that are not marked as secret, and only texts, numbers
and booleans, each truncated.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from gateway.engine.call import Call
from gateway.registries import ArtifactClass
from gateway.storage import ArgumentExcerpt

LONGEST: Final = 240
"""Maximum characters of an excerpt."""

MASK: Final = "[redacted]"

_LONGEST_PIECE: Final = 40
_LARGEST_NUMBER: Final = 10**_LONGEST_PIECE
_SECRET_NAME: Final = re.compile(
    r"(?i)pass(word|wd|phrase|code)|secret|token|credential|authorization|cookie|(api|private|access)[-_ ]?key|^pin$"
)
_FIRST_MEMBER: Final = re.compile(r"\$(?:\.([A-Za-z_][A-Za-z0-9_]*)|\['([^'\\]*)'\]|\[\"([^\"\\]*)\"\])(?=[.\[]|$)")


def excerpt_of(call: Call, kind: ArtifactClass | None) -> ArgumentExcerpt:
    """Return the excerpt. `kind` is the artifact class of the tool: what it hides from traces is hidden here, too."""
    text = (call.args_text or "").encode()
    schema = (None if call.declared is None else call.declared.input_schema) or {}
    may_show = "values" if kind is None else kind.capture_arguments
    masked = _find_masked(() if kind is None else kind.redact) if may_show == "values" else None
    excerpt = "" if may_show == "none" else _cut(" ".join(_pieces(call.args, schema, masked)), LONGEST)
    return ArgumentExcerpt(excerpt, len(text), sha256(text).hexdigest())


def _pieces(args: Mapping[str, Any], schema: Mapping[str, Any], masked: frozenset[str] | None) -> Iterator[str]:
    """Yield one piece per argument, up to the limit. `masked` are names; `None` masks every argument."""
    declared = schema.get("properties")
    declared = declared if isinstance(declared, Mapping) else {}
    length = 0
    for name, value in args.items():
        is_open = masked is not None and name not in masked and name in declared
        is_open = is_open and not _SECRET_NAME.search(name) and not _is_secret(declared[name])
        piece = f"{json.dumps(name[:_LONGEST_PIECE])[1:-1]}={_value(value) if is_open else MASK}"
        yield piece
        length += len(piece) + 1
        if length > LONGEST:
            return


def _value(value: Any) -> str:
    match value:
        case str():
            return _cut(json.dumps(value[: _LONGEST_PIECE + 1]), _LONGEST_PIECE)
        case bool() | None:
            return json.dumps(value)
        case int() | float():
            return json.dumps(value) if abs(value) < _LARGEST_NUMBER else "…"
        case list():
            return f"[{len(value)}]"
        case _:
            return f"{{{len(value)}}}"


def _is_secret(schema: Any) -> bool:
    """Whether any part of a property is write-only or a password. A reference may lead to one."""
    if isinstance(schema, Mapping):
        if schema.get("writeOnly") is True or schema.get("format") == "password" or "$ref" in schema:
            return True
        return any(map(_is_secret, schema.values()))
    return isinstance(schema, list | tuple) and any(map(_is_secret, schema))


def _find_masked(redact: Sequence[str]) -> frozenset[str] | None:
    """Return the arguments that the paths lead into; `None` if one may lead into any."""
    found = [_FIRST_MEMBER.match(path) for path in redact]
    names = [next(name for name in each.groups() if name is not None) for each in found if each is not None]
    return frozenset(names) if len(names) == len(redact) else None


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"
