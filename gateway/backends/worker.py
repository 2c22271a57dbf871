"""Runs one function over and over in a process of its own; speaks with the gateway over its standard input.

A script that imports the standard library only: the function's module is imported after the gateway said where to look
for it. Answers are JSON and bytes, never pickles, so a function cannot choose what the gateway builds from them.

    request   8 bytes length · JSON
    answer    8 bytes length · JSON head with the size of each part · the parts
"""

import asyncio
import importlib
import inspect
import json
import os
import socket
import sys
import traceback
from typing import Any

_TRACEBACK = 8 << 10
_LENGTH = 8


def main() -> None:
    line = socket.socket(fileno=os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    hello = receive(line)
    sys.path[:] = hello["path"]
    try:
        function = getattr(importlib.import_module(hello["module"]), hello["name"])
    except BaseException as error:
        send(line, *_failure(error))
        return
    send(line, {"kind": "ready"}, [])
    while True:
        send(line, *_answer(function, receive(line)["args"], limit=hello["limit"]))


def receive(line: socket.socket) -> Any:
    return json.loads(_exactly(line, int.from_bytes(_exactly(line, _LENGTH), "big")))


def send(line: socket.socket, head: dict[str, Any], parts: list[bytes]) -> None:
    text = json.dumps({**head, "sizes": [len(part) for part in parts]}).encode()
    line.sendall(len(text).to_bytes(_LENGTH, "big") + text)
    for part in parts:
        line.sendall(part)


def _answer(function: Any, args: dict[str, Any], *, limit: int) -> tuple[dict[str, Any], list[bytes]]:
    try:
        result = function(**args)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
        head, parts = _told(result)
    except BaseException as error:
        return _failure(error)
    size = sum(map(len, parts))
    return (head, parts) if size <= limit else ({"kind": "too-large", "size": size}, [])


async def _awaited(result: Any) -> Any:
    return await result


def _told(result: Any) -> tuple[dict[str, Any], list[bytes]]:
    if isinstance(result, str):
        return {"kind": "text"}, [result.encode("utf-8", "surrogatepass")]
    if isinstance(result, bytes | bytearray | memoryview):
        return {"kind": "bytes"}, [bytes(result)]
    # whoever returns media has imported the class
    media = getattr(sys.modules.get("gateway.core.media"), "Media", ())
    if isinstance(result, media):
        return {"kind": "media", "fields": [_fields(result)]}, [asyncio.run(result.as_bytes())]
    if isinstance(result, list | tuple) and result and all(isinstance(item, media) for item in result):
        parts = [asyncio.run(item.as_bytes()) for item in result]
        return {"kind": "media-list", "fields": [_fields(item) for item in result]}, parts
    try:
        _check_keys(result)
        return {"kind": "json"}, [json.dumps(result, allow_nan=False).encode()]
    except (TypeError, ValueError, RecursionError):
        return {"kind": "unknown", "type": type(result).__name__}, []


def _check_keys(value: Any) -> None:
    """Keys that JSON would turn into text are refused: two of them could become one."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("JSON objects have text keys")
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


def _fields(media: Any) -> dict[str, Any]:
    names = ("id", "kind", "mime_type", "filename", "trust_tier", "modality_hazard", "source")
    return {**{name: getattr(media, name) for name in names}, "stash": media.stash.all()}


def _failure(error: BaseException) -> tuple[dict[str, Any], list[bytes]]:
    ours = isinstance(error, getattr(sys.modules.get("gateway.errors"), "ToolError", ()))
    known = {name: getattr(error, name, None) for name in ("message", "help", "status", "word")} if ours else {}
    told = "".join(traceback.format_exception(error))[-_TRACEBACK:]
    return {"kind": "error", "type": type(error).__name__, "traceback": told, **known}, []


def _exactly(line: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = line.recv(min(size - len(received), 1 << 20))
        if not chunk:
            os._exit(0)  # the gateway let go of us
        received += chunk
    return bytes(received)


if __name__ == "__main__":
    main()
