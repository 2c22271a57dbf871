"""Six ordinary tools that convert one format to another; their results are artifacts of the target format.

Each takes either a text or the id of a call of this turn whose result has the source format. An
artifact is parsed with its own options. Invalid arguments are reported in the answer.

`write_xml` is the inverse of `parse_xml`. A key that starts with `_` and has a scalar value is an attribute, `#text` is
text, a list is repeated siblings, and everything else is a child element. A value that is not an object with one key
gets a root called `root`. The result is always well-formed: characters that XML does not allow are replaced.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.artifacts.formats.document_artifact import DocumentArtifact
from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.formats.toon_artifact import SpooledToonArtifact, import_toon
from gateway.artifacts.formats.xml_artifact import SpooledXmlArtifact
from gateway.artifacts.formats.yaml_artifact import SpooledYamlArtifact, load_yaml_parser
from gateway.artifacts.indexed_reader import encode_utf8
from gateway.artifacts.query_tools import find_artifact
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.errors import AnswerTooLarge
from gateway.model import Schema, Tool, format_js_number, to_pretty_json

MAX_CONVERTED_SIZE: Final = 8 << 20
"""Bytes of source text: writers hold the whole result in memory, and some of them are slow."""

ConversionSource = type[DocumentArtifact[Any]]
DocumentWriter = Callable[[Any], str]


def converter_tools() -> list[Tool]:
    return [
        _converter("yaml_to_json", SpooledYamlArtifact, target=SpooledJsonArtifact, write=to_pretty_json),
        _converter("json_to_yaml", SpooledJsonArtifact, target=SpooledYamlArtifact, write=_yaml),
        _converter("xml_to_json", SpooledXmlArtifact, target=SpooledJsonArtifact, write=to_pretty_json),
        _converter("json_to_xml", SpooledJsonArtifact, target=SpooledXmlArtifact, write=write_xml),
        _converter("toon_to_json", SpooledToonArtifact, target=SpooledJsonArtifact, write=to_pretty_json),
        _converter("json_to_toon", SpooledJsonArtifact, target=SpooledToonArtifact, write=_toon),
    ]


def _converter(name: str, source: ConversionSource, *, target: ConversionSource, write: DocumentWriter) -> Tool:
    old, new = (part.upper() for part in name.split("_to_"))

    async def convert(args: dict[str, Any], ctx: Any, meta: object) -> str:
        text, call_id = args.get("text", ""), args.get("call_id", "")
        if bool(text.strip()) == bool(call_id.strip()):
            return "Error: give either text or call_id, and not both."
        artifact = source(InMemoryReader(text)) if text.strip() else find_artifact(ctx, call_id, source)
        if artifact is None:
            return f"Error: no {old} artifact with this id is available in this turn."
        return await _convert(artifact, write)

    return Tool(
        name=name,
        description=f"Converts {old} to {new}: a text, or the {old} result of an earlier call of this turn.",
        input_schema=Schema(_arguments(old)),
        handler=convert,
        artifact_constructor=lambda: target,
    )


def _arguments(old: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": f"The {old} text. Leave it out when call_id is given."},
            "call_id": {
                "type": "string",
                "description": f"The id of a call whose result is {old}. Leave it out when text is given.",
            },
        },
    }


async def _convert(artifact: DocumentArtifact[Any], write: DocumentWriter) -> str:
    size = await artifact.byte_length()
    if size > MAX_CONVERTED_SIZE:
        raise AnswerTooLarge(
            f"the source has {size} bytes; at most {MAX_CONVERTED_SIZE} are converted",
            help="query the artifact instead, or convert a part of it",
        )
    value = await artifact.value()
    return await asyncio.to_thread(write, value)


def _yaml(value: Any) -> str:
    text: str = load_yaml_parser().write_yaml(_encodable(value))
    return text


def _toon(value: Any) -> str:
    text: str = import_toon().dumps(_encodable(value))
    return text


def _encodable(value: Any) -> Any:
    """Replace lone surrogates, which JSON can express and UTF-8 cannot."""
    if isinstance(value, str):
        return encode_utf8(value).decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


_TEXT_KEY: Final = "#text"
_ATTRIBUTE_PREFIX: Final = "_"
_DECLARATION: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_LONGEST_NAME: Final = 1_000
_INITIAL_SCOPE: Final = {"xml": "http://www.w3.org/XML/1998/namespace"}
_RESERVED: Final = (*_INITIAL_SCOPE.values(), "http://www.w3.org/2000/xmlns/")
_START: Final = (
    "A-Z_a-z\xc0-\xd6\xd8-\xf6\xf8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c\u200d\u2070-\u218f\u2c00-\u2fef"
    "\u3001-\ud7ff\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_GOOD_START: Final = re.compile(f"[{_START}]")
_BAD_NAME: Final = re.compile(f"[^{_START}0-9.\xb7\u0300-\u036f\u203f\u2040-]")
_BAD_TEXT: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN_URI: Final = re.compile(
    r"[\w.-]*|[A-Za-z][A-Za-z0-9+.-]*:(?://[\w.~-]+(?:[/?][\w./~!$&'()*+,;=:@?-]*)?|(?!//)[\w./~!$&'()*+,;=:@?-]*)(?:#[\w.-]*)?",
    re.ASCII,
)
"""Allowed namespace names. Stricter than the standard, so that every parser accepts them."""
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})
_ATTRIBUTE_ESCAPES: Final = _ESCAPES | str.maketrans({'"': "&quot;", "\t": "&#9;", "\n": "&#10;"})
XmlScope = Mapping[str, str]
"""The namespace prefixes that are declared at an element, and their namespaces."""


def write_xml(value: Any) -> str:
    """Return an indented document with an XML declaration."""
    name, content = _root(value)
    parts = [_DECLARATION]
    _write(parts, name, content, scope=_INITIAL_SCOPE, indent="")
    return "".join(parts)


def _root(value: Any) -> tuple[str, Any]:
    if isinstance(value, dict) and len(value) == 1:
        name, content = next(iter(value.items()))
        if not isinstance(content, list) and not _is_attribute(name, content) and name != _TEXT_KEY:
            return name, content
    return "root", value


def _write(parts: list[str], name: str, value: Any, *, scope: XmlScope, indent: str | None) -> None:
    """Write one element with its content; with `indent=None` on one line, because white space would be content."""
    members = _members(value)
    text = "" if isinstance(members.get(_TEXT_KEY), dict | list) else _text(members.pop(_TEXT_KEY, None))
    attributes, scope = _take_attributes(members, scope)
    tag = _name(name, scope)
    parts.append(f"{indent or ''}<{tag}{attributes}")
    if not text and not members:
        parts.append("/>")
    elif text or indent is None:
        parts.append(f">{text.translate(_ESCAPES)}")
        _write_children(parts, members, scope=scope, indent=None)
        parts.append(f"</{tag}>")
    else:
        parts.append(">\n")
        _write_children(parts, members, scope=scope, indent=f"{indent}  ")
        parts.append(f"{indent}</{tag}>")
    parts.append("" if indent is None else "\n")


def _write_children(parts: list[str], members: dict[str, Any], *, scope: XmlScope, indent: str | None) -> None:
    for key, value in members.items():
        for item in value if isinstance(value, list) else (value,):
            _write(parts, key, item, scope=scope, indent=indent)


def _members(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return dict(value)
    return {"item": value} if isinstance(value, list) else {_TEXT_KEY: value}


def _take_attributes(members: dict[str, Any], scope: XmlScope) -> tuple[str, XmlScope]:
    """Remove the attributes from `members`; return them as text, and the scope inside the element.

    Declarations come first, because they define prefixes. A second attribute of the same name stays a
    member and becomes a child.
    """
    written: dict[str, str] = {}
    inner = dict(scope)
    names = {key: key[len(_ATTRIBUTE_PREFIX) :] for key, value in members.items() if _is_attribute(key, value)}
    for key, name in names.items():
        if _is_declaration(name, members[key]):
            written[name] = inner[name.partition(":")[2]] = members.pop(key)
    taken: set[tuple[str, str]] = set()
    for key in filter(members.__contains__, names):
        name = _name(names[key], inner)
        prefix, _, local = name.rpartition(":")
        meaning = (inner[prefix] if prefix else "", local)
        if meaning not in taken and name != "xmlns":
            taken.add(meaning)
            written[name] = _text(members.pop(key))
    return "".join(f' {name}="{value.translate(_ATTRIBUTE_ESCAPES)}"' for name, value in written.items()), inner


def _is_attribute(key: str, value: Any) -> bool:
    return key.startswith(_ATTRIBUTE_PREFIX) and key != _ATTRIBUTE_PREFIX and not isinstance(value, dict | list)


def _is_declaration(name: str, value: Any) -> bool:
    if not isinstance(value, str) or value in _RESERVED or not _PLAIN_URI.fullmatch(value):
        return False
    start, _, prefix = name.partition(":")
    if start != "xmlns" or not prefix:
        return name == "xmlns"
    return bool(value) and prefix == _plain_name(prefix) and not prefix.lower().startswith("xml")


def _name(key: str, scope: XmlScope) -> str:
    prefix, _, local = key.partition(":")
    if prefix and local and prefix in scope:
        return f"{prefix}:{_plain_name(local)}"
    return _plain_name(key)


def _plain_name(key: str) -> str:
    name = _BAD_NAME.sub("_", key[:_LONGEST_NAME])
    looks_like_attribute = name.startswith(_ATTRIBUTE_PREFIX) and not key.startswith(_ATTRIBUTE_PREFIX)
    return f"n{name}" if looks_like_attribute or not _GOOD_START.match(name) else name


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return format_js_number(value)
    return _BAD_TEXT.sub("\ufffd", value)
