"""Too many JSON values from a program, a service or a function: the call fails before any of them is built."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from gateway.artifacts.formats.json_artifact import parse_json, parse_json_lines
from gateway.backends.mcp.backend import to_result
from gateway.backends.mcp.server_process import find_ids
from gateway.backends.openapi.document import MAX_VALUES, OpenApiInvalid, read_document
from gateway.backends.python.backend import _decode_reply
from gateway.backends.python.executors import WorkerReply
from gateway.backends.result_conversion import parse_json_result
from gateway.errors import JsonParseError
from gateway.model.schema.schema import NO_VALUE, parse_output
from gateway.model.tools.backend import BackendError
from tests.backends.mcp.servers.front_gateway import gateway, project, tool, upstream
from tests.support.python_folders import PYTHON_FOLDERS

pytestmark = pytest.mark.anyio

MANY = b"[" + b"[]," * 60_000 + b"[]]"
MODERN = "2026-07-28"
PROGRAM = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {"resultType": "complete"}
    if message["method"] == "server/discover":
        result |= {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    elif message["method"] == "tools/list":
        result |= {"tools": []}
    else:
        many = message["params"]["arguments"].get("many", 0)
        result |= {"content": [{"type": "text", "text": "done"}], "more": [[]] * many}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


async def test_program_that_sends_too_many_values_fails_that_call_alone(tmp_path: Path) -> None:
    script = tmp_path / "many.py"
    script.write_text(PROGRAM, encoding="utf-8")
    sandbox = {"readable": [*PYTHON_FOLDERS, str(tmp_path)]}
    remote = upstream("remote", {"type": "stdio", "argv": [sys.executable, str(script)], "sandbox": sandbox})
    folder = project(tmp_path / "project", remote, tool("give", "many:int"))
    async with gateway(folder) as started, Client(started.url, mode=MODERN) as client:
        calls = [client.call_tool("give", {"many": many}) for many in (1, 60_000, 2)]
        fine, failed, also_fine = await asyncio.gather(*calls)

    assert (fine.is_error, also_fine.is_error) == (False, False)
    assert failed.is_error
    assert "more than 50000 JSON values" in str(failed.content)


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"id": 8}}', {7, 8}),
        (b'{"result":[' + b"[]," * 1000 + b'],"id" : 9}', {9}),
        (b'{"id":"7"}', set()),
        (b'{"id":7.5}', {7}),
        (b"", set()),
    ],
)
def test_requests_that_a_line_may_answer(line: bytes, ids: set[int]) -> None:
    assert find_ids(line) == ids


async def test_results_of_tools_are_bounded() -> None:
    with pytest.raises(BackendError, match="more than 50000 JSON values"):
        await parse_json_result(MANY)
    with pytest.raises(BackendError, match="more than 50000 JSON values"):
        _decode_reply(WorkerReply({"kind": "json"}, (MANY,)), limit=1 << 20)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": MANY.decode()}]
    with pytest.raises(BackendError, match="more than 50000 JSON values"):
        to_result(blocks, None, json_results=True)
    assert parse_output(MANY) is NO_VALUE
    assert await parse_json_result(b"[1.5, 2]" + b" " * 100_000) == [1.5, 2]


def test_documents_have_bounds_of_their_own() -> None:
    with pytest.raises(JsonParseError, match="more than 1000000 values"):
        parse_json("[" + "[]," * 1_000_000 + "[]]")
    for lines in ("[]\n" * 1_000_001, "[[],[]]\n" * 400_001):
        with pytest.raises(JsonParseError, match="more than 1000000 values"):
            parse_json_lines(lines)
    assert len(parse_json("[" + "[]," * 60_000 + "[]]")) == 60_001
    with pytest.raises(OpenApiInvalid, match=f"more than {MAX_VALUES} values"):
        read_document(b'{"openapi":"3.1.0","x":[' + b"[]," * MAX_VALUES + b"[]]}")
