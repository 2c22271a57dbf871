"""Worker process that runs one function repeatedly; it talks to the gateway over its standard input.

The script imports only the standard library, and OpenTelemetry for calls that are traced. It imports the function's
module after the gateway has sent `sys.path`.
Replies are JSON and bytes, never pickles, so a function cannot choose which objects the gateway builds.

    request   8 bytes length · JSON with `args`, and `trace`: the trace headers of the call, if it is traced
    reply     8 bytes length · JSON head with the size of each part · the parts
"""

import asyncio
import importlib
import inspect
import json
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TRACEBACK = 8 << 10
_LENGTH = 8


def main() -> None:
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    setup = receive(connection)
    sys.path[:] = setup["path"]
    try:
        function = getattr(importlib.import_module(setup["module"]), setup["name"])
    except BaseException as error:
        send(connection, *_encode_error(error))
        return
    send(connection, {"kind": "ready"}, [])
    while True:
        request = receive(connection)
        with _current_span(request["trace"]):
            reply = _run_function(function, request["args"], limit=setup["limit"])
        send(connection, *reply)


def receive(connection: socket.socket) -> Any:
    return json.loads(_receive_exactly(connection, int.from_bytes(_receive_exactly(connection, _LENGTH), "big")))


def send(connection: socket.socket, head: dict[str, Any], parts: list[bytes]) -> None:
    text = json.dumps({**head, "sizes": [len(part) for part in parts]}).encode()
    connection.sendall(len(text).to_bytes(_LENGTH, "big") + text)
    for part in parts:
        connection.sendall(part)


@contextmanager
def _current_span(trace: dict[str, str]) -> Iterator[None]:
    """Make the call the current span of OpenTelemetry, so that spans of the function are its children."""
    if not trace:
        yield
        return
    from opentelemetry import context, propagate  # only traced calls need them

    token = context.attach(propagate.extract(trace))
    try:
        yield
    finally:
        context.detach(token)


def _run_function(function: Any, args: dict[str, Any], *, limit: int) -> tuple[dict[str, Any], list[bytes]]:
    try:
        result = function(**args)
        if inspect.isawaitable(result):
            result = asyncio.run(_await_result(result))
        head, parts = _encode_result(result)
    except BaseException as error:
        return _encode_error(error)
    size = sum(map(len, parts))
    return (head, parts) if size <= limit else ({"kind": "too-large", "size": size}, [])


async def _await_result(result: Any) -> Any:
    return await result


def _encode_result(result: Any) -> tuple[dict[str, Any], list[bytes]]:
    if isinstance(result, str):
        return {"kind": "text"}, [result.encode("utf-8", "surrogatepass")]
    if isinstance(result, bytes | bytearray | memoryview):
        return {"kind": "bytes"}, [bytes(result)]
    # a function that returns media has imported the class
    media = getattr(sys.modules.get("gateway.model.media"), "Media", ())
    if isinstance(result, media):
        return {"kind": "media", "fields": [_media_fields(result)]}, [asyncio.run(result.as_bytes())]
    if isinstance(result, list | tuple) and result and all(isinstance(item, media) for item in result):
        parts = [asyncio.run(item.as_bytes()) for item in result]
        return {"kind": "media-list", "fields": [_media_fields(item) for item in result]}, parts
    try:
        _check_keys(result)
        return {"kind": "json"}, [json.dumps(result, allow_nan=False).encode()]
    except (TypeError, ValueError, RecursionError):
        return {"kind": "unknown", "type": type(result).__name__}, []


def _check_keys(value: Any) -> None:
    """Raise `TypeError` for keys that are not text: JSON would convert them, and two of them could become one."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("JSON objects have text keys")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def _media_fields(media: Any) -> dict[str, Any]:
    names = ("id", "kind", "mime_type", "filename", "trust_tier", "modality_hazard", "source")
    return {**{name: getattr(media, name) for name in names}, "stash": media.stash.all()}


def _encode_error(error: BaseException) -> tuple[dict[str, Any], list[bytes]]:
    ours = isinstance(error, getattr(sys.modules.get("gateway.errors"), "ToolError", ()))
    known = {name: getattr(error, name, None) for name in ("message", "help", "status", "word")} if ours else {}
    text = "".join(traceback.format_exception(error))[-_TRACEBACK:]
    return {"kind": "error", "type": type(error).__name__, "traceback": text, **known}, []


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(min(size - len(received), 1 << 20))
        if not chunk:
            os._exit(0)  # the gateway closed the connection
        received += chunk
    return bytes(received)


if __name__ == "__main__":
    main()
