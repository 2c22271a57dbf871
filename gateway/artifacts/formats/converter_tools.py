"""Six ordinary tools that convert one format to another; their results are artifacts of the target format.

Each takes either a text or the id of a call of this turn whose result has the source format. An
artifact is parsed with its own options. Invalid arguments are reported in the answer.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gateway.artifacts.formats.document_artifact import DocumentArtifact
from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.formats.toon_artifact import SpooledToonArtifact, import_toon
from gateway.artifacts.formats.xml_artifact import SpooledXmlArtifact, write_xml
from gateway.artifacts.formats.yaml_artifact import SpooledYamlArtifact, load_yaml_parser
from gateway.artifacts.line_index import encode_utf8
from gateway.artifacts.spool_readers import InMemoryReader
from gateway.artifacts.spooled_artifact import find_artifact
from gateway.errors import AnswerTooLarge
from gateway.model import Schema, Tool, to_pretty_json

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
