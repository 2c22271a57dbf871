"""Downloads: the bytes of a result as callers may see it, whole or one range of it (RFC 9110), in chunks.

Content is always an attachment, its type is not guessed, and a browser that opens it anyway runs nothing. A request for
several ranges gets the whole.
"""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from gateway.artifacts import encode_utf8
from gateway.model import Media, sanitize_mime_type
from gateway.server.http.asgi import (
    PROBLEM_TYPE,
    Receive,
    Response,
    Scope,
    Send,
    build_problem,
    bytes_response,
    run_while_connected,
)
from gateway.server.rest.operation import RestRequest
from gateway.server.rest.responses import encode_json, etag_matches, not_modified

_ONE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `[start, end)`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class RangeNotSatisfiable(Exception):
    """The range is valid, but the content has none of its bytes."""


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """Return the range of a Range header; `None`, the whole, for every header that is not exactly one range."""
    found = _ONE.fullmatch(header) if header else None
    if found is None:
        return None
    first, last = found.groups()
    if not first:
        return _suffix(last, size)
    start, end = int(first), int(last) + 1 if last else size
    if last and end <= start:
        return None
    if start >= size:
        raise RangeNotSatisfiable
    return ByteRange(start, min(end, size))


def _suffix(last: str, size: int) -> ByteRange | None:
    if not last:
        return None
    if int(last) == 0 or size == 0:
        raise RangeNotSatisfiable
    return ByteRange(max(size - int(last), 0), size)


CHUNK: Final = 256 << 10

_TYPES: Final = {
    "SpooledJsonArtifact": ("application/json", "json"),
    "SpooledMarkdownArtifact": ("text/markdown; charset=utf-8", "md"),
    "SpooledYamlArtifact": ("application/yaml", "yaml"),
    "SpooledXmlArtifact": ("application/xml", "xml"),
    "SpooledEcmascriptArtifact": ("text/javascript; charset=utf-8", "js"),
    "SpooledPythonArtifact": ("text/x-python; charset=utf-8", "py"),
    "SpooledArtifact": ("text/plain; charset=utf-8", "txt"),
}
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_MAX_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Download:
    """The content to send. `size` is `None` if it is not known before the end; then there are no ranges."""

    piece: Any
    size: int | None
    type: str
    filename: str
    etag: str

    def chunks(self, span: ByteRange | None) -> AsyncIterator[bytes]:
        return _media_chunks(self.piece, span) if isinstance(self.piece, Media) else _artifact_chunks(self.piece, span)


async def build_download(piece: Any, *, name: str, version: str) -> Download:
    """Return the download. `version` identifies the bytes: it names the call, and the revision that masks them."""
    size = await piece.byte_length()
    etag = f'"{sha256(f"{version}:{size}".encode()).hexdigest()[:32]}"'
    if isinstance(piece, Media):
        return Download(piece, size, sanitize_mime_type(piece.mime_type), piece.filename, etag)
    type, suffix = get_content_type(piece)
    return Download(piece, size, type, f"{name}.{suffix}", etag)


def get_content_type(artifact: Any) -> tuple[str, str]:
    """Return the MIME type of an artifact's class, or of its nearest base class, and the suffix of its files."""
    names = (each.__name__ for each in type(artifact).__mro__)
    return next((_TYPES[name] for name in names if name in _TYPES), ("application/octet-stream", "bin"))


async def download_response(download: Download, request: RestRequest) -> Response:
    """Return the response: 200, 206, 304 or 416. Unreadable content raises before the response starts."""
    if etag_matches(request.header(b"if-none-match"), download.etag):
        return not_modified(_headers(download))
    try:
        span = _span(download, request)
    except RangeNotSatisfiable:
        return _out_of_range(download)
    reader = getattr(download.piece, "reader", None)
    if getattr(reader, "is_remote", False) and not request.is_head:
        await asyncio.to_thread(download.piece.reader.read_range, 0 if span is None else span.start, 1)
    return _stream_response(download, span)


def _span(download: Download, request: RestRequest) -> ByteRange | None:
    """Return the requested range; `None` if If-Range names another version, whose parts must not be combined."""
    ranges = [value for name, value in request.headers if name == b"range"]
    version = request.header(b"if-range")
    if request.is_head or download.size is None or len(ranges) != 1 or version not in (None, download.etag):
        return None
    return parse_range(ranges[0].decode("latin-1").strip(), download.size)


def _headers(download: Download) -> dict[bytes, bytes]:
    return {
        b"content-type": download.type.encode(),
        b"content-disposition": _disposition(download.filename),
        b"etag": download.etag.encode(),
        b"accept-ranges": b"none" if download.size is None else b"bytes",
        b"cache-control": b"private, no-cache",
        b"vary": b"authorization",
        b"x-content-type-options": b"nosniff",
        b"content-security-policy": b"default-src 'none'; sandbox",
        b"cross-origin-resource-policy": b"same-origin",
    }


def _disposition(filename: str) -> bytes:
    plain = _UNSAFE.sub("_", filename)[-_MAX_NAME:].lstrip(".") or "artifact"
    exact = quote(filename[-_MAX_NAME:].encode("utf-8", "replace"), safe="")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}".encode()


def _out_of_range(download: Download) -> Response:
    body = build_problem(416, "the artifact has no bytes in that range", code="E_RANGE_NOT_SATISFIABLE")
    headers = {
        b"content-range": b"bytes */%d" % (download.size or 0),
        b"cache-control": b"no-store",
        b"x-content-type-options": b"nosniff",
    }
    return bytes_response(encode_json(body), status=416, type=PROBLEM_TYPE, headers=headers)


def _stream_response(download: Download, span: ByteRange | None) -> Response:
    headers = _headers(download)
    length = download.size if span is None else span.length
    if length is not None:
        headers[b"content-length"] = b"%d" % length
    if span is not None:
        headers[b"content-range"] = b"bytes %d-%d/%d" % (span.start, span.end - 1, download.size or 0)

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        status = 200 if span is None else 206
        await send({"type": "http.response.start", "status": status, "headers": list(headers.items())})
        if scope["method"] == "HEAD" or await run_while_connected(receive, _send_all(download.chunks(span), send)):
            await send({"type": "http.response.body", "body": b""})

    return respond


async def _send_all(chunks: AsyncIterator[bytes], send: Send) -> None:
    async for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _artifact_chunks(artifact: Any, span: ByteRange | None) -> AsyncIterator[bytes]:
    """Yield chunks from the artifact's reader, which masks them if its class requires that."""
    reader = artifact.reader
    read = getattr(reader, "read_range", None)
    if read is None:
        text = reader.read_all()
        content = encode_utf8(await text if inspect.isawaitable(text) else text)
        yield content if span is None else content[span.start : span.end]
        return
    wanted = span or ByteRange(0, reader.byte_length())
    takes_long = wanted.length > CHUNK or getattr(reader, "is_remote", False)
    for offset in range(wanted.start, wanted.end, CHUNK):
        length = min(CHUNK, wanted.end - offset)
        chunk: bytes = await asyncio.to_thread(read, offset, length) if takes_long else read(offset, length)
        if len(chunk) != length:
            raise EOFError("the artifact's bytes were cut short")
        yield chunk


async def _media_chunks(media: Media, span: ByteRange | None) -> AsyncIterator[bytes]:
    position = 0
    async for chunk in media.stream():
        start, position = position, position + len(chunk)
        if span is None:
            yield chunk
        elif position > span.start:
            yield chunk[max(span.start - start, 0) : span.end - start]
        if span is not None and position >= span.end:
            return
