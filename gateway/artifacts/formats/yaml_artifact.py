"""SpooledYamlArtifact: a stream of YAML documents, queried by JSONPath."""

from typing import Any, ClassVar, Literal

from gateway.artifacts.formats.document_artifact import (
    PATH_ARGUMENT,
    RANGE_ARGUMENTS,
    DocumentArtifact,
    tool_method_factory,
)
from gateway.artifacts.query_tools import ToolMethod
from gateway.errors import ArtifactError, YamlParseError, YamlPeerMissing
from gateway.model import SpoolReader

_method = tool_method_factory("yaml")


class SpooledYamlArtifact(DocumentArtifact[list[Any]]):
    """A YAML artifact. `multi_document=False` requires one document; `True` reports even one as a stream."""

    tool_methods: ClassVar[tuple[ToolMethod, ...]] = (
        _method("type", "Returns single-document or multi-document."),
        _method("keys", "Returns the keys of all its documents that are objects."),
        _method("length", "Returns how many documents it has."),
        _method("get", "Returns every value a JSONPath finds, in all documents.", PATH_ARGUMENT),
        _method("pluck", "Returns every value a JSONPath finds, in all documents.", PATH_ARGUMENT),
        _method("filter", "Returns the documents in which a JSONPath finds something.", PATH_ARGUMENT),
        _method("slice", "Returns a range of its documents.", RANGE_ARGUMENTS),
    )
    parse_error: ClassVar[type[ArtifactError]] = YamlParseError

    def __init__(self, reader: SpoolReader, *, multi_document: bool | None = None) -> None:
        super().__init__(reader)
        self._multi_document = multi_document

    async def yaml_type(self) -> Literal["single-document", "multi-document"]:
        several = len(await self._document()) > 1
        return "multi-document" if self._multi_document or several else "single-document"

    async def yaml_keys(self) -> Any:
        return await self._keys()

    async def yaml_length(self) -> int:
        return len(await self._document())

    async def yaml_get(self, path: str) -> list[Any]:
        return await self._get(path)

    async def yaml_pluck(self, path: str) -> list[Any]:
        return await self._get(path)

    async def yaml_filter(self, path: str) -> list[Any]:
        return await self._filter(path)

    async def yaml_slice(self, start: int | None = None, end: int | None = None) -> list[Any]:
        return (await self._document())[start:end]

    async def value(self) -> Any:
        """Return the only document, a list of several, or `None` for none."""
        documents = await self._document()
        return documents if len(documents) > 1 else documents[0] if documents else None

    def _parse(self, text: str) -> list[Any]:
        documents: list[Any] = load_yaml_parser().parse_yaml(text, single=self._multi_document is False)
        return documents

    def _records(self, document: list[Any]) -> list[Any]:
        return document


def load_yaml_parser() -> Any:
    """Import the module that parses and writes YAML. Raises `YamlPeerMissing` if PyYAML is not installed."""
    try:
        from gateway.artifacts.formats import yaml_parser as yaml_text
    except ImportError as error:
        raise YamlPeerMissing(help="install pyyaml") from error
    return yaml_text
