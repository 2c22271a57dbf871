"""SpooledXmlArtifact: XML, converted to JSON as `xml_parser` describes and queried by JSONPath; and a writer of XML.

`write_xml` is the inverse of `parse_xml`. A key that starts with `_` and has a scalar value is an attribute, `#text` is
text, a list is repeated siblings, and everything else is a child element. A value that is not an object with one key
gets a root called `root`. The result is always well-formed: characters that XML does not allow are replaced.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from gateway.artifacts.formats.document_artifact import PATH_ARGUMENT, DocumentArtifact, JsonPath, tool_method_factory
from gateway.artifacts.spooled_artifact import ToolMethod
from gateway.errors import ArtifactError, XmlParseFailed, XmlParserPeerMissing
from gateway.model import UNDEFINED, SpoolReader, format_js_number

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


_method = tool_method_factory("xml")


class SpooledXmlArtifact(DocumentArtifact[Any]):
    """An XML artifact. `attribute_name_prefix` marks keys of attributes; `ignore_attributes` leaves them out."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        _method("root", "Returns the name of its root element."),
        _method("keys", "Returns the keys directly under the root: children, attributes and #text."),
        _method("tags", "Returns every element name that occurs, sorted."),
        _method("length", "Returns 1 for a document with a root, 0 for an empty one."),
        _method("get", "Returns every value a JSONPath finds.", PATH_ARGUMENT),
        _method("pluck", "Returns every value a JSONPath finds.", PATH_ARGUMENT),
        _method("filter", "Returns the elements that contain what a JSONPath finds, each once.", PATH_ARGUMENT),
    )
    parse_error: ClassVar[type[ArtifactError]] = XmlParseFailed

    def __init__(
        self, reader: SpoolReader, *, attribute_name_prefix: str = "_", ignore_attributes: bool = False
    ) -> None:
        super().__init__(reader)
        self._attribute_prefix = None if ignore_attributes else attribute_name_prefix

    async def xml_root(self) -> Any:
        document = await self._document()
        return UNDEFINED if document.root is None else document.root

    async def xml_keys(self) -> list[str]:
        document = await self._document()
        root = document.content.get(document.root)
        return list(root) if isinstance(root, dict) else []

    async def xml_tags(self) -> list[str]:
        return list((await self._document()).tags)

    async def xml_length(self) -> int:
        return len((await self._document()).content)

    async def xml_get(self, path: str) -> list[Any]:
        return await self._get(path)

    async def xml_pluck(self, path: str) -> list[Any]:
        return await self._get(path)

    async def xml_filter(self, path: str) -> list[Any]:
        document = await self._document()
        return await asyncio.to_thread(_containers, path, document.content)

    async def value(self) -> Any:
        return (await self._document()).content

    def _parse(self, text: str) -> Any:
        return load_xml_parser().parse_xml(text, attribute_prefix=self._attribute_prefix)

    def _records(self, document: Any) -> list[Any]:
        return [document.content] if document.content else []


def load_xml_parser() -> Any:
    """Import the module that parses XML. Raises `XmlParserPeerMissing` if lxml is not installed."""
    try:
        from gateway.artifacts.formats import xml_parser as xml_text
    except ImportError as error:
        raise XmlParserPeerMissing(help="install lxml") from error
    return xml_text


def _containers(path: str, content: dict[str, Any]) -> list[Any]:
    """Return the elements that contain the matches. A list of repeated siblings is not an element: use its parent."""
    found: dict[int, Any] = {}
    for place in JsonPath(path).matches(content):
        around = place.parent
        while around is not None and isinstance(around.obj, list):
            around = around.parent
        if around is not None:
            found.setdefault(id(around.obj), around.obj)
    return list(found.values())
