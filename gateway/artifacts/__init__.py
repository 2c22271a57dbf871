"""Results that are kept and queried: spooled artifacts, indexed readers, query tools, search.

May import `model` and `errors`.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.artifacts.formats.document_artifact import JsonPath, JsonPathMatch, to_bounded_text
    from gateway.artifacts.formats.json_artifact import JsonSyntaxError, SpooledJsonArtifact
    from gateway.artifacts.formats.yaml_artifact import SpooledYamlArtifact, load_yaml_parser
    from gateway.artifacts.formats.yaml_parser import parse_yaml
    from gateway.artifacts.indexed_reader import IndexedReader, LineIndex, encode_utf8
    from gateway.artifacts.query_tools import ToolMethod
    from gateway.artifacts.spool_stores import InMemoryReader, iter_chunks, to_handle
    from gateway.artifacts.spooled_artifact import SpooledArtifact
else:
    __getattr__ = lazy_exports(__name__)
