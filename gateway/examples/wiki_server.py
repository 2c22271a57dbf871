"""The company's wiki as an MCP server over stdio: `python -m gateway.examples.wiki_server`, a JSON-RPC message a line.

It uses only the standard library and stays small: it supports tools, but no resources, prompts, batches or requests to
the client.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final


@dataclass(frozen=True, slots=True)
class WikiPage:
    name: str
    title: str
    text: str


PAGES: Final[Mapping[str, WikiPage]] = {
    page.name: page
    for page in (
        WikiPage(
            "refunds",
            "Refunds",
            "Support promises no refund; finance pays it.\n\n"
            "- Up to 500 in any currency a finance clerk decides alone.\n"
            "- Above that a finance lead agrees first; the gateway asks for it.\n"
            "- One order is refunded once.\n",
        ),
        WikiPage(
            "tickets",
            "Writing a good ticket",
            "Search before you open a ticket.\n\n"
            "Say what you expected, what happened, and the order number. Priority *high* wakes somebody up.\n",
        ),
        WikiPage(
            "releases",
            "How we release",
            "Releases go out from Monday to Thursday. Read the commit log of the repository before you tag it, and\n"
            "write down in the ticket what changed for customers.\n",
        ),
        WikiPage(
            "price-list",
            "Where prices come from",
            "The price list changes at the start of a quarter. From 100 pieces on 5 percent are taken off, from\n"
            "1000 pieces on 12 percent. Ask for a quote instead of doing the sum yourself.\n",
        ),
    )
}

VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Protocol versions, the newest first, which is offered to clients that request an unknown version."""

MAX_LINE: Final = 1 << 20

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602

Json = dict[str, Any]

TOOLS: Final[tuple[Json, ...]] = (
    {
        "name": "search_pages",
        "description": "Finds pages of the wiki that contain a text.",
        "inputSchema": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "The text to look for."}},
            "required": ["query"],
            "additionalProperties": False,
        },
    },
    {
        "name": "read_page",
        "description": "Returns one page of the wiki as Markdown.",
        "inputSchema": {
            "type": "object",
            "properties": {"page": {"type": "string", "description": "Name of the page, as a search returns it."}},
            "required": ["page"],
            "additionalProperties": False,
        },
    },
)


class RpcError(Exception):
    """An error response to a request."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def search_pages(query: str) -> Json:
    wanted = query.casefold()
    found = [page for page in PAGES.values() if wanted in f"{page.name}\n{page.title}\n{page.text}".casefold()]
    return _text("\n".join(f"{page.name}: {page.title}" for page in found) or "no page contains that")


def read_page(page: str) -> Json:
    if page not in PAGES:
        return _text("there is no such page; search_pages finds the names of pages", is_error=True)
    return _text(f"# {PAGES[page].title}\n\n{PAGES[page].text}")


def initialise(params: Json) -> Json:
    version = params.get("protocolVersion")
    if not isinstance(version, str):
        raise RpcError(INVALID_PARAMS, "protocolVersion is a text")
    return {
        "protocolVersion": version if version in VERSIONS else VERSIONS[0],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "acme-wiki", "version": "1.0.0"},
    }


def list_tools(params: Json) -> Json:
    if params.get("cursor") is not None:
        raise RpcError(INVALID_PARAMS, "the list has one page, so there is no cursor")
    return {"tools": list(TOOLS)}


def call_tool(params: Json) -> Json:
    name, arguments = params.get("name"), params.get("arguments", {})
    tool = next((tool for tool in TOOLS if tool["name"] == name), None)
    if tool is None:
        raise RpcError(INVALID_PARAMS, "there is no such tool")
    [argument] = tool["inputSchema"]["required"]
    if not isinstance(arguments, dict) or set(arguments) != {argument} or not isinstance(arguments[argument], str):
        raise RpcError(INVALID_PARAMS, f"{tool['name']} takes one argument, the text {argument!r}")
    run = search_pages if tool["name"] == "search_pages" else read_page
    return run(arguments[argument])


METHODS: Final[Mapping[str, Callable[[Json], Json]]] = {
    "initialize": initialise,
    "ping": lambda params: {},
    "tools/list": list_tools,
    "tools/call": call_tool,
}


def answer(line: bytes) -> Json | None:
    """Return the response to a message, or `None` for a notification or a response."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return _error(None, PARSE_ERROR, "the line is not JSON")
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return _error(None, INVALID_REQUEST, "a message is one object with jsonrpc 2.0")
    if "method" not in message and ("result" in message or "error" in message):
        return None
    id = message.get("id")
    if not isinstance(message.get("method"), str) or ("id" in message and not _is_id(id)):
        return _error(id if _is_id(id) else None, INVALID_REQUEST, "a request has a method and an id")
    if "id" not in message:
        return None
    try:
        return {"jsonrpc": "2.0", "id": id, "result": _result(message)}
    except RpcError as error:
        return _error(id, error.code, error.message)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer every line until the end of the input."""
    while line := source.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            while line and not line.endswith(b"\n"):
                line = source.readline(MAX_LINE)
            reply: Json | None = _error(None, INVALID_REQUEST, f"a message has at most {MAX_LINE} bytes")
        else:
            reply = answer(line) if line.strip() else None
        if reply is not None:
            sink.write(json.dumps(reply).encode("ascii") + b"\n")
            sink.flush()


def _result(message: Json) -> Json:
    method = METHODS.get(message["method"])
    if method is None:
        raise RpcError(METHOD_NOT_FOUND, "there is no such method")
    params = message.get("params", {})
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params is an object")
    return method(params)


def _is_id(id: object) -> bool:
    return isinstance(id, str | int) and not isinstance(id, bool)


def _error(id: object, code: int, message: str) -> Json:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}


def _text(text: str, *, is_error: bool = False) -> Json:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


if __name__ == "__main__":
    try:
        serve(sys.stdin.buffer, sys.stdout.buffer)
    except KeyboardInterrupt:
        sys.exit(0)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the final flush would raise
