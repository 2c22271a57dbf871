"""The result of a tool on another server as the rest of a call understands it.

Text becomes an artifact of the tool's class; where there is more than text, each block is kept on its own, and in
order. Fields that nobody here knows travel along. What a block says of itself sets neither trust nor hazard.
"""

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import orjson

from gateway.backends.results import MediaTemplate, too_many_values
from gateway.core.bounded_json import TooManyValues, check_values
from gateway.core.media import InMemoryMediaReader, Media, hazard_of
from gateway.core.media_blocks import safe_mime
from gateway.core.promises import NOTHING, parsed
from gateway.governance.ports import BackendFailed
from gateway.serving.relayed import RAW_BLOCK, TEXT_BLOCK, Aside, foreign_meta
from gateway.upstreams.messages import Json

MOST_BLOCKS: Final = 1_000
MAX_STRUCTURED: Final = 1 << 20
"""Bytes of JSON that programs are given beside a text."""
MAX_BESIDE: Final = 16 << 10
"""Bytes of everything else."""

_KNOWN: Final = frozenset({"content", "structuredContent", "isError", "resultType", "_meta", "ttlMs", "cacheScope"})
_LONGEST_ERROR: Final = 16_000


def result_blocks(result: Json) -> list[Json]:
    """The content of a result. Raises `BackendFailed` if it is none."""
    blocks = result.get("content", [])
    if not isinstance(blocks, list) or len(blocks) > MOST_BLOCKS:
        raise BackendFailed("failed", "the upstream server answered something else than a list of blocks")
    if not all(isinstance(each, dict) and isinstance(each.get("type"), str) for each in blocks):
        raise BackendFailed("failed", "the upstream server answered with a block that has no type")
    return blocks


def failure_of(blocks: Sequence[Json]) -> BackendFailed:
    """What a tool says went wrong, lines kept; everything else that does not print is spelled out."""
    text = text_of(blocks).strip() or "the tool failed"
    shown = "".join(map(_visible, text[:_LONGEST_ERROR]))
    return BackendFailed("failed", shown)


def value_of(
    result: Json, blocks: Sequence[Json], *, json_results: bool, media: MediaTemplate | None = None
) -> str | bytes | Media | list[Media]:
    """Text, JSON or media. Raises `BackendFailed` for blocks that cannot be read."""
    if json_results:
        return _json(result, blocks)
    if all(each["type"] == "text" for each in blocks):
        texts = [_text(each) for each in blocks]
        if not texts and "structuredContent" in result:
            return orjson.dumps(result["structuredContent"])
        return texts[0] if len(texts) == 1 else "\n\n".join(texts)
    found = [_media(each, number, media) for number, each in enumerate(blocks)]
    return found[0] if len(found) == 1 else found


def aside_of(result: Json, *, json_results: bool, limit: int = MAX_STRUCTURED) -> Aside | None:
    """What stands beside the blocks, if there is any of it; too much of it is left out."""
    if result.keys() <= {"content", "isError", "resultType"}:
        return None
    structured = NOTHING if json_results else result.get("structuredContent", NOTHING)
    if structured is not NOTHING and len(orjson.dumps(structured)) > limit:
        structured = NOTHING
    meta = foreign_meta(result.get("_meta"))
    fields = {key: value for key, value in result.items() if key not in _KNOWN}
    if (meta or fields) and len(orjson.dumps([meta, fields])) > MAX_BESIDE:
        meta, fields = {}, {}
    return Aside(structured, meta, fields) if structured is not NOTHING or meta or fields else None


def _json(result: Mapping[str, Any], blocks: Sequence[Json]) -> bytes:
    if "structuredContent" in result:
        return orjson.dumps(result["structuredContent"])
    text = text_of(blocks)
    content = text.encode("utf-8", "replace")
    try:
        check_values(content)
    except TooManyValues as error:
        raise too_many_values(error) from None
    if parsed(content) is NOTHING:
        help = "give the tool another artifact class"
        raise BackendFailed("failed", "the upstream server's result is not JSON that is read exactly", help=help)
    return content


def text_of(blocks: Sequence[Json]) -> str:
    return "\n".join(_text(each) for each in blocks if each["type"] == "text")


def _text(block: Json) -> str:
    text = block.get("text")
    if not isinstance(text, str):
        raise BackendFailed("failed", "the upstream server answered with a text block that has no text")
    return text


def _media(block: Json, number: int, template: MediaTemplate | None) -> Media:
    kind = block["type"]
    if kind == "text":
        return _document(_text(block).encode("utf-8", "replace"), "text/plain", f"block-{number}.txt", TEXT_BLOCK)
    if kind == "image":
        return _seen(block, "image", number, template)
    if kind == "audio":
        return _seen(block, "audio", number, template)
    return _document(orjson.dumps(block), "application/json", f"block-{number}.json", RAW_BLOCK)


def _seen(block: Json, kind: Literal["image", "audio"], number: int, template: MediaTemplate | None) -> Media:
    data, mime = block.get("data"), block.get("mimeType")
    try:
        content = b64decode(data, validate=True) if isinstance(data, str) else None
    except (binascii.Error, ValueError):
        content = None
    if content is None or not isinstance(mime, str):
        raise BackendFailed("failed", f"the upstream server answered with an {kind} that cannot be read")
    if template is not None and template.kind == kind:
        return template.media(content)
    return Media(
        kind=kind,
        mime_type=safe_mime(mime),
        filename=f"{kind}-{number}",
        reader=InMemoryMediaReader(content),
        trust_tier="third-party-private",
        modality_hazard=hazard_of(kind),
    )


def _document(content: bytes, mime: str, name: str, source: str) -> Media:
    return Media(
        kind="document",
        mime_type=mime,
        filename=name,
        reader=InMemoryMediaReader(content),
        trust_tier="third-party-private",
        modality_hazard="extractable-instructions",
        source=source,
    )


def _visible(char: str) -> str:
    return char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode("ascii")
