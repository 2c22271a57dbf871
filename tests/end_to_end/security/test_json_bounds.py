"""Bodies of the maximum size against a real process: too many values are refused at once; others are not delayed."""

import http.client
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.gateways.liveness import poll_liveness
from tests.support.gateways.process import GatewayProcess, start_gateway_process
from tests.support.gateways.projects import (
    MODERN,
    Person,
    base_documents,
    catalogue,
    environ_of,
    http_tool,
    tokens_of,
    write_project,
)

ANA = Person("ana", ("staff",))
SIZE = (4 << 20) - 2048
REST = "/v1/catalogues/desk/tools/echo/call"


def repeat_item(item: bytes, count: int) -> bytes:
    return b"[" + b",".join([item] * count) + b"]"


BOMBS: dict[str, Callable[[], bytes]] = {
    "arrays": lambda: repeat_item(b"[]", SIZE // 3),
    "objects": lambda: repeat_item(b"{}", SIZE // 3),
    "numbers": lambda: repeat_item(b"1", SIZE // 2),
    "members": lambda: b"{" + b",".join(b'"%d":1' % number for number in range(300_000)) + b"}",
    "nested": lambda: b"[" * SIZE,
}
HEAVY: dict[str, Callable[[], bytes]] = {
    "one text": lambda: b'["' + b"a" * SIZE + b'"]',
    "escapes": lambda: b'["' + b"\\n" * (SIZE // 2) + b'"]',
    "characters": lambda: b'["' + "😀".encode() * (SIZE // 4) + b'"]',
    "many texts": lambda: repeat_item(b'"' + b"a" * 75 + b'"', 49_000),
    "long numbers": lambda: repeat_item(b"0." + b"123456789" * 8, 49_000),
    "one number": lambda: b"[0." + b"1" * SIZE + b"]",
    "long keys": lambda: b"{" + b", ".join(b'"%b%06d": 1' % (b"k" * 65, number) for number in range(49_000)) + b"}",
    "objects of texts": lambda: repeat_item(b'{"a":"' + b"x" * 150 + b'"}', 24_000),
    "nesting": lambda: b"[" + b",".join([b"[" * 120 + b"]" * 120] * 400) + b"]",
    "small arrays": lambda: repeat_item(b"[]", 49_000),
    # JavaScript prints these differently from the parser, so that identifying the call takes longest
    "large exponents": lambda: repeat_item(b"1.5e300", 49_000),
    "small exponents": lambda: repeat_item(b"1.5e-7", 49_000),
    "long integers": lambda: repeat_item(b"1234567890123456789", 49_000),
    "keys above ASCII": lambda: b"{" + b",".join('"😀%d":1'.encode() % number for number in range(49_000)) + b"}",
    "escapes beside a long integer": lambda: b'[1234567890123456789,"' + 'é\\\\\\"'.encode() * (SIZE // 6) + b'"]',
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("bounds")
    anything = {"schema": {"type": "object", "additionalProperties": True}}
    documents = [*base_documents(["tokens"], catalogue="desk"), tokens_of([ANA]), http_tool("echo", 1, input=anything)]
    documents.append(catalogue("desk", ["role:staff"], ["*"]))
    project = write_project(folder / "p", documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")
    with start_gateway_process(project, folder / "data", env=environ_of([ANA])) as gateway:
        yield gateway
        assert gateway.process.poll() is None, "nothing here ends the process"


def resident(gateway: GatewayProcess) -> int:
    pages = Path(f"/proc/{gateway.process.pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def post(gateway: GatewayProcess, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=60)
    sent = {"Authorization": f"Bearer {ANA.token}", "Content-Type": "application/json", "Host": "localhost", **headers}
    try:
        connection.request("POST", path, body, sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def over_rest(gateway: GatewayProcess, arguments: bytes) -> tuple[int, dict[str, object]]:
    return post(gateway, REST, b'{"arguments":{"a":%b}}' % arguments)


def over_mcp(gateway: GatewayProcess, arguments: bytes) -> tuple[int, dict[str, object]]:
    meta = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
    params = b'{"name":"echo","arguments":{"a":%b},"_meta":%b}' % (arguments, json.dumps(meta).encode())
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%b}' % params
    headers = {"Mcp-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
    return post(gateway, "/desk/mcp", body, Accept="application/json, text/event-stream", **headers)


@pytest.mark.parametrize("name", BOMBS)
def test_too_many_values_are_refused_with_a_code(gateway: GatewayProcess, name: str) -> None:
    arguments = BOMBS[name]()
    before = resident(gateway)
    status, body = over_rest(gateway, arguments)
    assert (status, body["code"]) == (413, "E_TOO_MANY_VALUES")
    assert "50000" in str(body["detail"])
    assert "GATEWAY_MAX_JSON_VALUES" in str(body["help"])

    status, body = over_mcp(gateway, arguments)
    assert status == 413
    assert body["error"] == {
        "code": -32600,
        "message": "the JSON has more than 50000 values",
        "data": {"code": "E_TOO_MANY_VALUES"},
    }
    assert resident(gateway) - before < 96 << 20


def test_liveness_is_answered_while_the_largest_bodies_are_read(gateway: GatewayProcess) -> None:
    with poll_liveness(gateway.url) as alone:
        for arguments in (b"1", b"[]"):
            over_rest(gateway, arguments)
    took: dict[str, float] = {}
    for name, make in {**BOMBS, **HEAVY}.items():
        arguments = make()
        with poll_liveness(gateway.url) as live:
            for call in (over_rest, over_mcp):
                assert call(gateway, arguments)[0] < 500, name
        took[name] = live.quantile(0.5)
        print(f"{name}: half within {live.quantile(0.5):.3f} s, all within {live.quantile(1):.3f} s")
    print(f"alone: half within {alone.quantile(0.5):.3f} s, all within {alone.quantile(1):.3f} s")
    # on an idle machine every answer takes less; on a busy one half of them do
    assert max(took.values()) < 0.1 + alone.quantile(0.5), took
