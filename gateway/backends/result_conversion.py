"""Conversion of backend results: values to text, bytes or media, and the check against a tool's output schema."""

import asyncio
import json
import re
import unicodedata
from asyncio import to_thread
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from typing import Any, Final

from gateway.artifacts import IndexedReader, SpooledArtifact, encode_utf8
from gateway.errors import ProgramError
from gateway.model import (
    LARGE,
    MAX_STRUCTURED_SIZE,
    NO_VALUE,
    Backend,
    BackendError,
    InMemoryMediaReader,
    Invocation,
    Media,
    MediaKind,
    ModalityHazard,
    OutputSchema,
    TooManyValues,
    TrustTier,
    check_values,
    is_spool_reader,
    parse_output,
    run_in_json_thread,
)

EXCERPT: Final = 2048
"""Maximum number of characters of third-party text that a message quotes."""

REDACTED: Final = "[redacted]"
_SHORTEST_SECRET: Final = 4


class BackendUnusable(ProgramError):
    """The backend cannot do what its document declares; raised when it is built."""

    code = "E_BACKEND_UNUSABLE"
    default_message = "the backend cannot do what was declared"


@asynccontextmanager
async def enforce_deadline(timeout: timedelta | None) -> AsyncIterator[asyncio.Timeout]:
    """Raise `BackendError` if the block takes longer than `timeout`. Cancellation by the caller passes through."""
    try:
        async with asyncio.timeout(None if timeout is None else timeout.total_seconds()) as deadline:
            yield deadline
    except TimeoutError as error:
        if timeout is None or not deadline.expired():
            raise
        raise BackendError("unavailable", f"no result within {timeout.total_seconds():g} s") from error


def excerpt(text: str | bytes, *, secrets: Iterable[str] = (), limit: int = EXCERPT) -> str:
    """Return third-party text as one line, with secrets redacted and control and direction characters escaped."""
    shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            shown = shown.replace(secret, REDACTED)
    shown = "".join(map(_visible, shown.strip()))
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


def type_name(value: object) -> str:
    """Return the class name, reduced to identifier characters: the author of the class chooses it."""
    return re.sub(r"[^A-Za-z0-9_.]", "", type(value).__name__)[:80] or "object"


def _visible(character: str) -> str:
    if unicodedata.category(character)[0] != "C" and character not in "\u2028\u2029":
        return character
    return character.encode("unicode_escape").decode("ascii")


_INLINE_BYTES: Final = 1 << 16
"""Results up to this many bytes are read in the event loop: they are still in memory."""


class OutputMismatch(BackendError):
    """A tool ran, possibly with effect, and its result does not match its output schema."""

    code = "E_OUTPUT_MISMATCH"

    def __init__(self, why: str) -> None:
        help = "report it to the upstream's operator, or skip the check with import: {outputSchemas: ignore}"
        super().__init__("failed", f"the tool ran, but its result does not fit its output schema: {why}", help=help)


class OutputCheckBackend:
    """A backend that checks the results of another one: text, bytes or a reader of JSON that matches the schema."""

    def __init__(self, inner: Backend, promise: OutputSchema) -> None:
        self._inner = inner
        self._promise = promise

    async def run(self, call: Invocation) -> Any:
        result = await self._inner.run(call)
        value = await _read_value(result)
        if not self._promise.matches(value):
            raise OutputMismatch(self._promise.mismatch(value))
        return result

    async def close(self) -> None:
        await self._inner.close()


async def _read_value(result: Any) -> Any:
    if isinstance(result, IndexedReader):
        size = result.byte_length()
        if size > MAX_STRUCTURED_SIZE:
            return NO_VALUE
        result = result.read_range(0, size) if size <= _INLINE_BYTES else await to_thread(result.read_range, 0, size)
    content = encode_utf8(result) if isinstance(result, str) else result
    return parse_output(content) if isinstance(content, bytes) else NO_VALUE


_UNCHANGED_TYPES: Final = (str, Media, SpooledArtifact)


@dataclass(frozen=True, slots=True)
class MediaTemplate:
    """Media properties that a tool's document declares for the bytes it returns."""

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


def normalize_result(value: Any, *, json_results: bool, media: MediaTemplate | None) -> Any:
    """Return a function's result as text, bytes, media, artifacts or JSON text. Raise `BackendError` for any other."""
    if type(value) is dict and json_results:
        return json_text(value)
    if isinstance(value, _UNCHANGED_TYPES):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return media.media(bytes(value)) if media else bytes(value)
    if is_spool_reader(value):
        return value
    if isinstance(value, list | tuple) and value and _are_of_one_kind(value):
        return list(value)
    if not json_results:
        help = "return text, bytes or media, or give the tool a JSON artifact class"
        raise BackendError("failed", f"the tool returned {type_name(value)}; its results are not JSON", help=help)
    return json_text(value)


def _are_of_one_kind(values: list[Any] | tuple[Any, ...]) -> bool:
    return any(all(isinstance(item, kind) for item in values) for kind in (Media, SpooledArtifact))


def json_text(value: Any) -> str:
    try:
        return write_json(value if _is_plain(value) else _to_plain(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise BackendError("failed", f"the tool returned {type_name(value)}, which JSON cannot express") from error


write_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode

_TEXT: Final = frozenset({str})
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _is_plain(value: Any) -> bool:
    """Whether the value needs no copy: dicts with text keys, lists and scalars, no subclasses."""
    kind = type(value)
    if kind is not dict and kind is not list:
        return kind in _SCALARS
    members = value.values() if kind is dict else value
    has_text_keys = kind is list or _TEXT.issuperset(map(type, value))
    return has_text_keys and (_SCALARS.issuperset(map(type, members)) or all(map(_is_plain, members)))


def _to_plain(value: Any) -> Any:
    """Return the value as plain JSON. Raise `TypeError` for keys that are not text: two of them could become one."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("JSON objects have text keys")
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    return value


async def read_all(chunks: AsyncIterable[bytes], *, limit: int) -> bytes:
    """Collect all chunks. Raise `BackendError` if they exceed the limit."""
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > limit:
            raise BackendError("failed", f"the result has more than {limit} bytes")
    return bytes(content)


async def parse_json_result(content: bytes) -> Any:
    """Parse JSON, outside the event loop if it is large. Raise `BackendError` if it is not JSON."""
    try:
        return _parse_json(content) if len(content) < LARGE else await run_in_json_thread(_parse_json, content)
    except TooManyValues as error:
        raise too_many_values(error) from None
    except (ValueError, RecursionError) as error:
        raise BackendError("failed", "the result is not JSON") from error


def too_many_values(error: TooManyValues) -> BackendError:
    help = "have the tool return less at a time, or give it an artifact class that is not JSON"
    return BackendError("failed", f"the result has more than {error.most} JSON values", help=help)


def _parse_json(content: bytes) -> Any:
    check_values(content)
    return json.loads(content, parse_constant=_raise_not_json, parse_float=_parse_float)


def _parse_float(digits: str) -> float:
    """Parse a float in Python code, so that other threads can run between two numbers."""
    number = float(digits)
    return number if isfinite(number) else _raise_not_json("a number out of range")


def _raise_not_json(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
