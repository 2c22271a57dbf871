"""A lock as text: YAML that people read in a diff, the same bytes for the same definitions.

One definition is one document of the stream. Texts of several lines stand as they are, long ones are folded at spaces,
and whatever a reader would not see is written as an escape.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from gateway.governance.imports import ImportedDefinition
from gateway.governance.locks import Lock, LockedUpstream
from gateway.governance.unseen import is_seen

VERSION: Final = 1
HEADING: Final = """\
# What each upstream brings, as somebody looked at it. Written by `gateway lock`; a change by hand is noticed.
"""
_WIDTH: Final = 100
_PLAIN: Final = re.compile(r"[A-Za-z$_][A-Za-z0-9_$./-]*")
_WORDS: Final = frozenset(["null", "true", "false", "yes", "no", "on", "off", "y", "n"])
"""What some reader of YAML takes for something else than text."""

_FIRST: Final = ("name", "title", "description")


def lock_text(lock: Lock) -> str:
    parts = [f"{HEADING}{_mapping({'version': VERSION})}"]
    for name in sorted(lock.upstreams):
        parts.append(_mapping(_upstream(lock.upstreams[name])))
        parts += [_mapping(_definition(each)) for each in lock.of(name)]
    return "---\n".join(parts)


def _upstream(upstream: LockedUpstream) -> dict[str, Any]:
    sources = {name: list(upstream.sources[name]) for name in sorted(upstream.sources)}
    found: dict[str, Any] = {"upstream": upstream.name, "sources": sources}
    found |= {"server": dict(upstream.server)} if upstream.server else {}
    return {**found, "confirmed": upstream.confirmed} if upstream.confirmed else found


def _definition(definition: ImportedDefinition) -> dict[str, Any]:
    return {
        "upstream": definition.upstream,
        definition.kind: definition.name,
        "digest": f"sha256:{definition.digest}",
        "definition": _sorted(definition.given, first=_FIRST),
    }


def _sorted(value: Any, first: Sequence[str] = ()) -> Any:
    """Keys in one order; of a definition, what people read first stands first."""
    if isinstance(value, Mapping):
        keys = [*(key for key in first if key in value), *sorted(key for key in value if key not in first)]
        return {key: _sorted(value[key]) for key in keys}
    return [_sorted(each) for each in value] if isinstance(value, list | tuple) else value


def _mapping(value: Mapping[str, Any]) -> str:
    return "".join(f"{line}\n" for line in _lines(value, 0))


def _lines(value: Mapping[str, Any] | Sequence[Any], indent: int) -> Iterator[str]:
    """A mapping or a list in block style."""
    blank = " " * indent
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{blank}{_key(key)}:", item, indent)
        return
    for item in value:
        if isinstance(item, Mapping | list) and item and _flow(item) is None:
            first, *rest = _lines(item, indent + 2)
            yield f"{blank}- {first[indent + 2 :]}"
            yield from rest
        else:
            yield from _entry(f"{blank}-", item, indent)


def _entry(start: str, item: Any, indent: int) -> Iterator[str]:
    if isinstance(item, str):
        yield from _text(start, item, indent + 2)
    elif isinstance(item, Mapping | list) and _flow(item) is None:
        yield start
        yield from _lines(item, indent + 2)
    else:
        yield f"{start} {_flow(item)}"


def _flow(item: Any) -> str | None:
    """A scalar or a container on one line; `None` if it has to have more."""
    if isinstance(item, Mapping):
        return None if item else "{}"
    if isinstance(item, list):
        if any(isinstance(each, Mapping | list) or (isinstance(each, str) and len(each) > _WIDTH) for each in item):
            return None
        line = f"[{', '.join(map(_scalar, item))}]"
        return line if len(line) <= _WIDTH else None
    return _scalar(item)


def _text(start: str, text: str, indent: int) -> Iterator[str]:
    blank = " " * indent
    if _is_literal(text):
        body = text.removesuffix("\n")
        yield f"{start} |{'' if text.endswith(chr(10)) else '-'}"
        yield from (f"{blank}{line}" if line else "" for line in body.split("\n"))
    elif len(text) > _WIDTH and is_seen(text) and all(text.split(" ")):
        yield f"{start} >-"
        yield from (f"{blank}{line}" for line in _folded(text.split(" ")))
    else:
        yield f"{start} {_scalar(text)}"


def _is_literal(text: str) -> bool:
    """Whether the text can stand line by line. What begins or ends with blanks is quoted, so that they are seen."""
    if "\n" not in text or text.endswith("\n\n"):
        return False
    lines = text.removesuffix("\n").split("\n")
    return (
        bool(lines[0].strip(" "))
        and not text.startswith(" ")
        and all(is_seen(line) and (not line or bool(line.strip(" "))) for line in lines)
    )


def _folded(words: Sequence[str]) -> Iterator[str]:
    line = ""
    for word in words:
        if line and len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


def _key(text: str) -> str:
    return _scalar(text)


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _WORDS and len(value) <= _WIDTH
        return value if is_plain else _quoted(value)
    if isinstance(value, float):
        return _decimal(value)
    return json.dumps(value)


def _decimal(value: float) -> str:
    """Without an exponent, which not every reader takes for a number."""
    text = format(Decimal(repr(value)), "f")
    return text if "." in text else f"{text}.0"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return '"' + (escaped if is_seen(escaped) else "".join(map(_escape, escaped))) + '"'


def _escape(character: str) -> str:
    if is_seen(character):
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
