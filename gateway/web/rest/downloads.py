"""Downloads: the bytes of a result as it is shown, whole or one range of it, chunk by chunk.

Never as a page: content is an attachment, its type is not guessed, and a browser that opens it anyway runs nothing.
"""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from gateway.core.lines import encode
from gateway.core.media import Media
from gateway.core.media_blocks import safe_mime
from gateway.web.edge import Receive, Scope, Send
from gateway.web.problems import PROBLEM_TYPE, Response, bytes_response, problem
from gateway.web.rest.answers import matches, not_modified, wire_json
from gateway.web.rest.asking import Asked
from gateway.web.rest.connections import while_connected
from gateway.web.rest.ranges import Span, Unsatisfiable, span_of

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
_LONGEST_NAME: Final = 80


@dataclass(frozen=True, slots=True)
class Download:
    """What is sent. `size` is `None` where nobody knows it before the end; there are no ranges then."""

    piece: Any
    size: int | None
    type: str
    filename: str
    etag: str

    def chunks(self, span: Span | None) -> AsyncIterator[bytes]:
        return _media_chunks(self.piece, span) if isinstance(self.piece, Media) else _artifact_chunks(self.piece, span)


async def download_of(piece: Any, *, name: str, version: str) -> Download:
    """`version` is everything that decides about the bytes: the call, and the revision whose masks they go through."""
    size = await piece.byte_length()
    etag = f'"{sha256(f"{version}:{size}".encode()).hexdigest()[:32]}"'
    if isinstance(piece, Media):
        return Download(piece, size, safe_mime(piece.mime_type), piece.filename, etag)
    type, suffix = content_type(piece)
    return Download(piece, size, type, f"{name}.{suffix}", etag)


def content_type(artifact: Any) -> tuple[str, str]:
    """The MIME type of a class, or of the nearest one it comes from, and the suffix of a file of that type."""
    names = (each.__name__ for each in type(artifact).__mro__)
    return next((_TYPES[name] for name in names if name in _TYPES), ("application/octet-stream", "bin"))


async def sent(download: Download, asked: Asked) -> Response:
    """The answer: 200, 206, 304 or 416. What cannot be read at all is refused before it begins."""
    if matches(asked.header(b"if-none-match"), download.etag):
        return not_modified(_headers(download))
    try:
        span = _span(download, asked)
    except Unsatisfiable:
        return _out_of_range(download)
    reader = getattr(download.piece, "reader", None)
    if getattr(reader, "is_remote", False) and not asked.is_head:
        await asyncio.to_thread(download.piece.reader.read_range, 0 if span is None else span.start, 1)
    return _streamed(download, span)


def _span(download: Download, asked: Asked) -> Span | None:
    """What of it is wanted. A range of another version would be glued to what the client has of this one."""
    ranges = [value for name, value in asked.headers if name == b"range"]
    version = asked.header(b"if-range")
    if asked.is_head or download.size is None or len(ranges) != 1 or version not in (None, download.etag):
        return None
    return span_of(ranges[0].decode("latin-1").strip(), download.size)


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
    plain = _UNSAFE.sub("_", filename)[-_LONGEST_NAME:].lstrip(".") or "artifact"
    exact = quote(filename[-_LONGEST_NAME:].encode("utf-8", "replace"), safe="")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{exact}".encode()


def _out_of_range(download: Download) -> Response:
    body = problem(416, "the artifact has no bytes in that range", code="E_RANGE_NOT_SATISFIABLE")
    headers = {
        b"content-range": b"bytes */%d" % (download.size or 0),
        b"cache-control": b"no-store",
        b"x-content-type-options": b"nosniff",
    }
    return bytes_response(wire_json(body), status=416, type=PROBLEM_TYPE, headers=headers)


def _streamed(download: Download, span: Span | None) -> Response:
    headers = _headers(download)
    length = download.size if span is None else span.length
    if length is not None:
        headers[b"content-length"] = b"%d" % length
    if span is not None:
        headers[b"content-range"] = b"bytes %d-%d/%d" % (span.start, span.end - 1, download.size or 0)

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        status = 200 if span is None else 206
        await send({"type": "http.response.start", "status": status, "headers": list(headers.items())})
        if scope["method"] == "HEAD" or await while_connected(receive, _send_all(download.chunks(span), send)):
            await send({"type": "http.response.body", "body": b""})

    return respond


async def _send_all(chunks: AsyncIterator[bytes], send: Send) -> None:
    async for chunk in chunks:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _artifact_chunks(artifact: Any, span: Span | None) -> AsyncIterator[bytes]:
    """Through the reader that the artifact shows itself by, masked where its class says so."""
    reader = artifact.reader
    read = getattr(reader, "read_range", None)
    if read is None:
        text = reader.read_all()
        content = encode(await text if inspect.isawaitable(text) else text)
        yield content if span is None else content[span.start : span.end]
        return
    wanted = span or Span(0, reader.byte_length())
    takes_long = wanted.length > CHUNK or getattr(reader, "is_remote", False)
    for offset in range(wanted.start, wanted.end, CHUNK):
        length = min(CHUNK, wanted.end - offset)
        chunk: bytes = await asyncio.to_thread(read, offset, length) if takes_long else read(offset, length)
        if len(chunk) != length:
            raise EOFError("the artifact's bytes were cut short")
        yield chunk


async def _media_chunks(media: Media, span: Span | None) -> AsyncIterator[bytes]:
    position = 0
    async for chunk in media.stream():
        start, position = position, position + len(chunk)
        if span is None:
            yield chunk
        elif position > span.start:
            yield chunk[max(span.start - start, 0) : span.end - start]
        if span is not None and position >= span.end:
            return
