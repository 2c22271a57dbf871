"""SpooledXmlArtifact: XML, converted to JSON as `xml_parser` describes and queried by JSONPath."""

import asyncio
from typing import Any, ClassVar

from gateway.artifacts.formats.document_artifact import PATH_ARGUMENT, DocumentArtifact, JsonPath, tool_method_factory
from gateway.artifacts.query_tools import ToolMethod
from gateway.errors import ArtifactError, XmlParseFailed, XmlParserPeerMissing
from gateway.model import UNDEFINED, SpoolReader

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
