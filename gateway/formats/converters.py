"""Six ordinary tools that turn one format into another; their results are artifacts of the target format.

Each takes either a text or the id of a call of this turn whose result has the source format. A
converted artifact keeps its options. What is wrong with the arguments is told in the answer.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from gateway.core.artifacts import find_artifact
from gateway.core.canonical import pretty
from gateway.core.lines import encode
from gateway.core.schemas import Schema
from gateway.core.spool import InMemoryReader
from gateway.core.tools import Tool
from gateway.errors import AnswerTooLarge
from gateway.formats.documents import DocumentArtifact
from gateway.formats.jsondoc import SpooledJsonArtifact
from gateway.formats.toon import SpooledToonArtifact, toon_library
from gateway.formats.xml_writer import write_document
from gateway.formats.xmldoc import SpooledXmlArtifact
from gateway.formats.yamldoc import SpooledYamlArtifact, yaml_text

MAX_CONVERTED: Final = 8 << 20
"""Bytes of source text; writers hold the whole result, and some of them slowly build it."""

Source = type[DocumentArtifact[Any]]
Write = Callable[[Any], str]


def converter_tools() -> list[Tool]:
    return [
        _converter("yaml_to_json", SpooledYamlArtifact, target=SpooledJsonArtifact, write=pretty),
        _converter("json_to_yaml", SpooledJsonArtifact, target=SpooledYamlArtifact, write=_yaml),
        _converter("xml_to_json", SpooledXmlArtifact, target=SpooledJsonArtifact, write=pretty),
        _converter("json_to_xml", SpooledJsonArtifact, target=SpooledXmlArtifact, write=write_document),
        _converter("toon_to_json", SpooledToonArtifact, target=SpooledJsonArtifact, write=pretty),
        _converter("json_to_toon", SpooledJsonArtifact, target=SpooledToonArtifact, write=_toon),
    ]


def _converter(name: str, source: Source, *, target: Source, write: Write) -> Tool:
    wanted, offered = (part.upper() for part in name.split("_to_"))

    async def convert(args: dict[str, Any], ctx: Any, meta: object) -> str:
        text, call_id = args.get("text", ""), args.get("call_id", "")
        if bool(text.strip()) == bool(call_id.strip()):
            return "Error: give either text or call_id, and not both."
        artifact = source(InMemoryReader(text)) if text.strip() else find_artifact(ctx, call_id, source)
        if artifact is None:
            return f"Error: no {wanted} artifact with this id is available in this turn."
        return await _converted(artifact, write)

    return Tool(
        name=name,
        description=f"Converts {wanted} to {offered}: a text, or the {wanted} result of an earlier call of this turn.",
        input_schema=Schema(_arguments(wanted)),
        handler=convert,
        artifact_constructor=lambda: target,
    )


def _arguments(wanted: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": f"The {wanted} text. Leave it out when call_id is given."},
            "call_id": {
                "type": "string",
                "description": f"The id of a call whose result is {wanted}. Leave it out when text is given.",
            },
        },
    }


async def _converted(artifact: DocumentArtifact[Any], write: Write) -> str:
    size = await artifact.byte_length()
    if size > MAX_CONVERTED:
        raise AnswerTooLarge(
            f"the source has {size} bytes; at most {MAX_CONVERTED} are converted",
            help="query the artifact instead, or convert a part of it",
        )
    value = await artifact.value()
    return await asyncio.to_thread(write, value)


def _yaml(value: Any) -> str:
    text: str = yaml_text().write_document(_encodable(value))
    return text


def _toon(value: Any) -> str:
    text: str = toon_library().dumps(_encodable(value))
    return text


def _encodable(value: Any) -> Any:
    """The value without half surrogate pairs, which JSON can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return encode(value).decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value
