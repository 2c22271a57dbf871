"""The wiki, started as a program and queried over its pipes; tables of messages are served in this process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.examples.wiki_server import MAX_LINE, PAGES, VERSIONS, serve

COMMAND = [sys.executable, "-m", "gateway.examples.wiki_server"]


class Client:
    """Sends lines and reads lines; the server keeps running between them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def send(self, line: bytes) -> None:
        self._in.write(line + b"\n")
        self._in.flush()

    def read(self) -> Any:
        return json.loads(self._out.readline())

    def ask(self, method: str, params: Any = None, *, id: Any = 1) -> Any:
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        self.send(json.dumps(message if params is None else {**message, "params": params}).encode())
        return self.read()

    def close(self) -> tuple[bytes, bytes]:
        """Return the rest of the server's output after its input ended."""
        output, errors = self._process.communicate()
        assert self._process.returncode == 0
        return output, errors


@pytest.fixture
def wiki() -> Iterator[Client]:
    client = Client()
    yield client
    assert client.close() == (b"", b"")


def exchange(*lines: bytes) -> list[Any]:
    """Return the server's answers to some lines."""
    sink = BytesIO()
    serve(BytesIO(b"".join(line + b"\n" for line in lines)), sink)
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def call_tool(tool: str, **arguments: str) -> tuple[str, bool]:
    [answer] = exchange(_call(name=tool, arguments=arguments))
    return text_of(answer)


def text_of(answer: Any) -> tuple[str, bool]:
    [block] = answer["result"]["content"]
    return block["text"], answer["result"]["isError"]


def test_whole_conversation(wiki: Client) -> None:
    hello = wiki.ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}})
    wiki.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
    assert hello["result"]["protocolVersion"] == "2025-06-18"
    assert hello["result"]["capabilities"] == {"tools": {}}

    listed = wiki.ask("tools/list", id="two")
    assert (listed["id"], [tool["name"] for tool in listed["result"]["tools"]]) == (
        "two",
        ["search_pages", "read_page"],
    )

    found, is_error = text_of(wiki.ask("tools/call", {"name": "search_pages", "arguments": {"query": "FINANCE lead"}}))
    assert (found, is_error) == ("refunds: Refunds", False)
    page, is_error = text_of(wiki.ask("tools/call", {"name": "read_page", "arguments": {"page": "refunds"}}))
    assert page.startswith("# Refunds\n\nSupport promises no refund")
    assert not is_error


@pytest.mark.parametrize(("asked", "offered"), [*((each, each) for each in VERSIONS), ("1999-01-01", VERSIONS[0])])
def test_version_is_the_one_asked_for_or_the_newest(asked: str, offered: str) -> None:
    [hello] = exchange(_line(method="initialize", params={"protocolVersion": asked}))

    assert hello["result"]["protocolVersion"] == offered


def test_ping_is_answered_with_nothing(wiki: Client) -> None:
    assert wiki.ask("ping", id=0) == {"jsonrpc": "2.0", "id": 0, "result": {}}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_every_page_is_found_by_its_name_and_can_be_read(name: str) -> None:
    found, _ = call_tool("search_pages", query=name)
    page, is_error = call_tool("read_page", page=name)

    assert f"{name}: {PAGES[name].title}" in found.splitlines()
    assert page == f"# {PAGES[name].title}\n\n{PAGES[name].text}"
    assert not is_error


@pytest.mark.parametrize(
    ("tool", "arguments", "expected", "is_error"),
    [
        pytest.param("read_page", {"page": "../etc/passwd"}, "there is no such page", True, id="no such page"),
        pytest.param("search_pages", {"query": "zebra"}, "no page contains that", False, id="nothing found"),
    ],
)
def test_empty_result_has_a_message_for_the_model(
    tool: str, arguments: dict[str, str], expected: str, is_error: bool
) -> None:
    text, failed = call_tool(tool, **arguments)

    assert text.startswith(expected)
    assert failed is is_error


def _line(**parts: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, **parts}).encode()


def _call(**params: Any) -> bytes:
    return _line(method="tools/call", params=params)


@pytest.mark.parametrize(
    ("line", "id", "code"),
    [
        pytest.param(b"{", None, -32700, id="half an object"),
        pytest.param(b"\xff", None, -32700, id="no text"),
        pytest.param(b"[" * 100_000, None, -32700, id="deeply nested"),
        pytest.param(b"[]", None, -32600, id="a batch"),
        pytest.param(b'{"id": 1, "method": "ping"}', None, -32600, id="no version"),
        pytest.param(b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', None, -32600, id="id null"),
        pytest.param(b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', None, -32600, id="id true"),
        pytest.param(_line(), 1, -32600, id="no method"),
        pytest.param(_line(method=7), 1, -32600, id="method is a number"),
        pytest.param(_line(method="resources/list"), 1, -32601, id="unknown method"),
        pytest.param(_line(method="tools/list", params=[]), 1, -32602, id="params are a list"),
        pytest.param(_line(method="tools/list", params={"cursor": "x"}), 1, -32602, id="unknown cursor"),
        pytest.param(_line(method="initialize"), 1, -32602, id="no version asked for"),
        pytest.param(_call(), 1, -32602, id="no tool"),
        pytest.param(_call(name="delete_page", arguments={"page": "x"}), 1, -32602, id="unknown tool"),
        pytest.param(_call(name=["read_page"]), 1, -32602, id="name is a list"),
        pytest.param(_call(name="read_page"), 1, -32602, id="no arguments"),
        pytest.param(_call(name="read_page", arguments=["refunds"]), 1, -32602, id="arguments are a list"),
        pytest.param(_call(name="read_page", arguments={"page": 7}), 1, -32602, id="argument is a number"),
        pytest.param(_call(name="read_page", arguments={"page": "x", "y": 1}), 1, -32602, id="unknown argument"),
        pytest.param(b" " * (2 * MAX_LINE), None, -32600, id="too long"),
    ],
)
def test_bad_message_gets_its_code_and_the_next_one_an_answer(line: bytes, id: int | None, code: int) -> None:
    answer, after = exchange(line, _line(id="after", method="ping"))

    assert (answer["id"], answer["error"]["code"]) == (id, code)
    assert after == {"jsonrpc": "2.0", "id": "after", "result": {}}


def test_program_goes_on_after_a_bad_message(wiki: Client) -> None:
    wiki.send(b"{")

    assert wiki.read()["error"]["code"] == -32700
    assert wiki.ask("ping", id="after")["id"] == "after"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}', id="known"
        ),
        pytest.param(b'{"jsonrpc": "2.0", "method": "no/such"}', id="unknown"),
        pytest.param(b'{"jsonrpc": "2.0", "id": 9, "result": {}}', id="an answer"),
        pytest.param(b"", id="an empty line"),
    ],
)
def test_notifications_are_not_answered(line: bytes) -> None:
    assert exchange(line) == []


@given(st.binary(max_size=200))
def test_whatever_is_sent_gets_answers_that_are_json_rpc(data: bytes) -> None:
    for answer in exchange(data):
        assert answer["jsonrpc"] == "2.0"
        assert ("result" in answer) != ("error" in answer)


def test_client_that_stops_reading_is_no_failure() -> None:
    client = Client()
    client._out.close()
    client.send(_line(method="ping"))

    client._in.close()
    assert client._process.wait() == 0
    assert client._process.stderr is not None
    with client._process.stderr as errors:
        assert errors.read() == b""
