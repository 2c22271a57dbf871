"""Converts XML to JSON values, by lxml without entities, document types or network.

An element becomes a key. Its attributes become keys with a prefix, its text becomes `#text`, or the value itself if
the element has nothing else, and repeated siblings become a list; an empty element is "". Names include their
prefix as written, and namespace declarations are attributes. Text is trimmed, and texts between children are joined
by a space. The texts true, false and numbers are converted, except numbers with leading zeros, hexadecimal ones, and
ones with more digits than a double holds. Attributes stay text. Comments and processing instructions are skipped.

Needs lxml; `xmldoc` imports this module on first use.
"""

import io
import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

from lxml import etree

from gateway.artifacts.formats.document_artifact import check_depth, depth_error, truncate
from gateway.artifacts.indexed_reader import encode_utf8
from gateway.errors import XmlParseFailed

TEXT_KEY: Final = "#text"

_SPACE: Final = " \t\r\n"
_PROLOG: Final = re.compile(r"[ \t\r\n]+|<!--.*?-->|<\?.*?\?>", re.DOTALL)
_XML_NAMESPACE: Final = "http://www.w3.org/XML/1998/namespace"
_EXACT_DIGITS: Final = 15
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class XmlDocument:
    """A converted document. `content` is `{root: value}`; a blank text has no root and no content."""

    root: str | None
    content: dict[str, Any]
    tags: list[str]


def parse_xml(text: str, *, attribute_prefix: str | None = "_") -> XmlDocument:
    """Convert a document; without a prefix, attributes are left out."""
    start = text.lstrip(f"\ufeff{_SPACE}")
    if not start:
        return XmlDocument(None, {}, [])
    _refuse_document_type(start)
    builder = _XmlDocumentBuilder(attribute_prefix)
    # Only a declaration must come first; otherwise leading blank lines stay, so that line numbers are correct.
    source = encode_utf8(start if start.startswith("<?xml") else text)
    events = etree.iterparse(
        io.BytesIO(source),
        events=("start", "end", "start-ns"),
        encoding="utf-8",  # ignores the declaration: the text was decoded already
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        for event, item in events:
            builder.take(event, item)
    except etree.XMLSyntaxError as error:
        raise _parse_error(events.error_log) from error
    document = builder.document()
    check_depth(document.content, XmlParseFailed)
    return document


def _refuse_document_type(text: str) -> None:
    """Raise `XmlParseFailed` for a DOCTYPE. It is before the root; elsewhere it is a syntax error."""
    at = 0
    while part := _PROLOG.match(text, at):
        at = part.end()
    if text[at : at + 9].upper() == "<!DOCTYPE":
        raise XmlParseFailed(
            "a document type and the entities it declares are not supported",
            help="remove the DOCTYPE and write the entities out",
        )


@dataclass(slots=True)
class _Element:
    name: str
    content: dict[str, Any] = field(default_factory=dict)

    def add(self, key: str, value: Any) -> None:
        if key not in self.content:
            self.content[key] = value
        elif isinstance(self.content[key], list):
            self.content[key].append(value)
        else:
            self.content[key] = [self.content[key], value]


class _XmlDocumentBuilder:
    """Builds a document from parse events; elements are cleared as soon as they are converted."""

    def __init__(self, attribute_prefix: str | None) -> None:
        self._prefix = attribute_prefix
        self._open = [_Element("")]
        self._declarations: list[tuple[str, str]] = []
        self._tags: set[str] = set()

    def take(self, event: str, item: Any) -> None:
        if event == "start-ns":
            self._declarations.append(item)
        elif event == "start":
            self._start(item)
        else:
            self._end(item)

    def document(self) -> XmlDocument:
        content = self._open[0].content
        return XmlDocument(next(iter(content)), content, sorted(self._tags))

    def _start(self, element: Any) -> None:
        opened = _Element(_element_name(element))
        self._tags.add(opened.name)
        if self._prefix is not None:
            for prefix, uri in self._declarations:
                opened.add(f"{self._prefix}xmlns{prefix and f':{prefix}'}", uri)
            for name, value in element.attrib.items():
                opened.add(self._prefix + _attribute_name(name, element), value)
        self._declarations.clear()
        self._open.append(opened)

    def _end(self, element: Any) -> None:
        closed = self._open.pop()
        pieces = [element.text, *(child.tail for child in element)]
        text = " ".join(filter(None, ((piece or "").strip(_SPACE) for piece in pieces)))
        if closed.content and text:
            closed.content[TEXT_KEY] = _scalar(text)
        self._open[-1].add(closed.name, closed.content or _scalar(text))
        element.clear(keep_tail=True)


def _element_name(element: Any) -> str:
    local: str = element.tag.rpartition("}")[2]
    return f"{element.prefix}:{local}" if element.prefix else local


def _attribute_name(name: str, element: Any) -> str:
    if not name.startswith("{"):
        return name
    uri, _, local = name[1:].partition("}")
    prefixes = {uri: prefix for prefix, uri in element.nsmap.items() if prefix} | {_XML_NAMESPACE: "xml"}
    return f"{prefixes[uri]}:{local}"


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _EXACT_DIGITS * 2 or not _NUMBER.fullmatch(text):
        return text
    if sum(map(str.isdigit, re.split("[eE]", text)[0])) > _EXACT_DIGITS:
        return text
    number = float(text)
    if not math.isfinite(number):
        return text
    return int(text) if text.lstrip("-").isdigit() else number


def _parse_error(log: Any) -> XmlParseFailed:
    """Return an error with the first entry of the log: the exception often names a consequence, not the cause."""
    first = next(iter(log.filter_from_errors()), None)
    message, place = (first.message, f" (line {first.line}:{first.column})") if first else ("no element found", "")
    if "depth" in message:
        return depth_error(XmlParseFailed)
    reason = truncate(message.partition(", try ")[0])
    return XmlParseFailed(f"{reason if reason[1:2].isupper() else reason[:1].lower() + reason[1:]}{place}")
