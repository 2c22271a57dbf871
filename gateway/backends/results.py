"""What a backend may hand back, and how bytes become media. What a result is worth is not decided here."""

import json
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

from gateway.backends.refusals import type_name
from gateway.core.artifacts import SpooledArtifact
from gateway.core.bounded_json import LARGE, TooManyValues, check_values, read_apart
from gateway.core.media import InMemoryMediaReader, Media, MediaKind, ModalityHazard, TrustTier
from gateway.core.spool import is_spool_reader
from gateway.governance.ports import BackendFailed

_AS_THEY_ARE: Final = (str, Media, SpooledArtifact)


@dataclass(frozen=True, slots=True)
class MediaTemplate:
    """What a tool's bytes are, as its document declares it."""

    kind: MediaKind
    mime_type: str
    filename: str
    trust_tier: TrustTier
    hazard: ModalityHazard
    caption: str | None = None

    def media(self, content: bytes) -> Media:
        caption = {"text:caption": {"value": self.caption, "trust_tier": "first-party"}} if self.caption else None
        return Media(
            kind=self.kind,
            mime_type=self.mime_type,
            filename=self.filename,
            reader=InMemoryMediaReader(content),
            trust_tier=self.trust_tier,
            modality_hazard=self.hazard,
            stash=caption,
        )


def shaped(value: Any, *, json_results: bool, media: MediaTemplate | None) -> Any:
    """A function's result as the rest of a call understands it. Raises `BackendFailed` if it is nothing of the kind."""
    if isinstance(value, _AS_THEY_ARE):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return media.media(bytes(value)) if media else bytes(value)
    if is_spool_reader(value):
        return value
    if isinstance(value, list | tuple) and value and _are_of_one_kind(value):
        return list(value)
    if not json_results:
        help = "return text, bytes or media, or give the tool a JSON artifact class"
        raise BackendFailed("failed", f"the tool returned {type_name(value)}; its results are not JSON", help=help)
    return json_text(value)


def _are_of_one_kind(values: list[Any] | tuple[Any, ...]) -> bool:
    return any(all(isinstance(item, kind) for item in values) for kind in (Media, SpooledArtifact))


def json_text(value: Any) -> str:
    try:
        return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendFailed("failed", f"the tool returned {type_name(value)}, which JSON cannot express") from error


def _plain(value: Any) -> Any:
    """Keys that JSON would turn into text are refused: two of them could become one."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("JSON objects have text keys")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


async def collected(chunks: AsyncIterable[bytes], *, limit: int) -> bytes:
    """Everything at once, for what can only be judged as a whole. Raises `BackendFailed` past the limit."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > limit:
            raise BackendFailed("failed", f"the result has more than {limit} bytes")
    return bytes(content)


async def parsed_json(content: bytes) -> Any:
    """The value of a JSON text, read elsewhere if it is large. Raises `BackendFailed` if it is none."""
    try:
        return _parsed(content) if len(content) < LARGE else await read_apart(_parsed, content)
    except TooManyValues as error:
        raise too_many_values(error) from None
    except (ValueError, RecursionError) as error:
        raise BackendFailed("failed", "the result is not JSON") from error


def too_many_values(error: TooManyValues) -> BackendFailed:
    help = "have the tool give less at a time, or give it an artifact class that is not JSON"
    return BackendFailed("failed", f"the result has more than {error.most} JSON values", help=help)


def _parsed(content: bytes) -> Any:
    check_values(content)
    return json.loads(content, parse_constant=_not_json, parse_float=_finite)


def _finite(digits: str) -> float:
    """A function of Python's, so that other threads may run between two numbers."""
    number = float(digits)
    return number if isfinite(number) else _not_json("a number past every double")


def _not_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
