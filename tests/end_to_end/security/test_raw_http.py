"""Raw bytes on a socket: targets, hosts, lengths and heads that no library sends, against a real process."""

import json
import re
import resource
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.server.rest.operation_table import OPERATIONS
from tests.support.gateways.process import GatewayProcess, start_gateway_process
from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    environ_of,
    http_tool,
    tokens_of,
    write_project,
)

ANA = Person("ana", ("staff",))
MAX_BODY = 4096
LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
PATIENCE = 20.0


@dataclass(frozen=True)
class Answer:
    status: int
    head: str
    body: bytes


class Wire:
    """Sends raw bytes, each request on its own connection."""

    def __init__(self, url: str, pid: int) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._address = (host, int(port))
        self._pid = pid
        self.port = port

    def resident(self) -> int:
        """Return the resident memory of the process in bytes."""
        pages = Path(f"/proc/{self._pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * resource.getpagesize()

    def send(self, *pieces: bytes) -> Answer:
        """Return the bytes received until the server closes or the answer is complete."""
        with socket.create_connection(self._address, timeout=PATIENCE) as connection:
            for piece in pieces:
                try:
                    connection.sendall(piece)
                except OSError:  # the server has stopped reading; its answer may still be there
                    break
            return _answer(connection)

    def request(
        self,
        method: str,
        target: str,
        *headers: str,
        body: bytes = b"",
        host: str | None = "localhost",
        token: str | None = ANA.token,
    ) -> Answer:
        lines = [f"{method} {target} HTTP/1.1", *([] if host is None else [f"Host: {host}"]), "Connection: close"]
        lines += [] if token is None else [f"Authorization: Bearer {token}"]
        lines += (
            [*headers]
            if any("length" in each.lower() or "transfer" in each.lower() for each in headers)
            else [
                *headers,
                f"Content-Length: {len(body)}",
            ]
        )
        return self.send("\r\n".join([*lines, "", ""]).encode("latin-1"), body)

    def is_up(self) -> bool:
        return self.request("GET", "/livez", token=None).status == 200


def _answer(connection: socket.socket) -> Answer:
    received = b""
    try:
        while chunk := connection.recv(1 << 16):
            received += chunk
    except ConnectionResetError:
        pass
    head, _, body = received.partition(b"\r\n\r\n")
    found = re.match(rb"HTTP/1\.1 (\d{3})", head)
    return Answer(int(found[1]) if found else 0, head.decode("latin-1"), body)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("wire")
    documents = [*base_documents(["tokens"], catalogue="desk"), tokens_of([ANA]), http_tool("echo", 1)]
    documents.append(catalogue("desk", ["role:staff"], ["*"]))
    project = write_project(folder / "p", documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")
    env = {**environ_of([ANA]), "GATEWAY_MAX_BODY": str(MAX_BODY), "GATEWAY_ALLOWED_ORIGINS": "https://app.example.com"}
    with start_gateway_process(project, folder / "data", env=env) as gateway:
        yield gateway
        assert gateway.process.poll() is None, "nothing here ends the process"


@pytest.fixture(scope="module")
def wire(gateway: GatewayProcess) -> Wire:
    return Wire(gateway.url, gateway.process.pid)


@pytest.fixture(scope="module")
def admin(gateway: GatewayProcess) -> Wire:
    return Wire(gateway.admin_url, gateway.process.pid)


JSON = "Content-Type: application/json"


def routes() -> Iterator[tuple[str, str]]:
    for operation in OPERATIONS:
        yield operation.method, re.sub(r"\{\w+\}", "desk", operation.path)
    yield from [("POST", "/desk/mcp"), ("GET", "/desk/mcp"), ("POST", "/mcp"), ("GET", "/livez"), ("GET", "/readyz")]
    yield from [("GET", "/.well-known/oauth-protected-resource"), ("GET", "/nothing")]


HOSTS = [
    "a/x?",
    "localhost/x?",
    "a#",
    "a@b",
    "localhost@evil.com",
    "",
    "evil.com",
    "localhost.evil.com",
    "[::1",
    "[::2]",
]


@pytest.mark.parametrize("host", [*HOSTS, None], ids=str)
def test_no_host_but_ours_is_served_on_any_route(host: str | None, wire: Wire) -> None:
    assert {wire.request(method, path, host=host).status for method, path in routes()} == {421}


def test_two_hosts_are_refused_whichever_is_ours(wire: Wire) -> None:
    for first, second in (("localhost", "evil.com"), ("evil.com", "localhost"), ("localhost", "localhost")):
        assert wire.request("GET", "/v1/catalogues", f"Host: {second}", host=first).status == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST", "localhost:1"])
def test_names_of_this_machine_are_served(host: str, wire: Wire) -> None:
    assert wire.request("GET", "/v1/catalogues", host=host).status == 200


@pytest.mark.parametrize(
    "target",
    [
        "http://localhost/livez",
        "http://localhost/v1/catalogues",
        "https://localhost/livez",
        "http://evil.example/livez",
        "*@127.0.0.1:{canary}/x",
        "*",
        "@127.0.0.1:{canary}/x",
        "127.0.0.1:{canary}",
        "//127.0.0.1:{canary}/livez",
        "//livez",
        "/livez%2f",
        "/livez%5c",
        "/livez%00",
        "/livez%",
        "/livez%zz",
        "/%2e%2e/livez",
        "/./livez",
        "/livez#x",
        "/livez\\x",
    ],
)
def test_targets_are_paths_on_every_listener(target: str, wire: Wire, admin: Wire) -> None:
    with socket.create_server(("127.0.0.1", 0)) as canary:
        target = target.replace("{canary}", str(canary.getsockname()[1]))
        for listener in (wire, admin):
            for method in ("GET", "POST", "CONNECT"):
                for session in ((), ("Mcp-Session-Id: 1.x",)):
                    assert listener.request(method, target, *session).status == 400
        canary.setblocking(False)
        with pytest.raises(BlockingIOError):
            canary.accept()


def test_trailers_are_no_headers_on_any_listener(wire: Wire, admin: Wire) -> None:
    for listener in (wire, admin):
        for path in ("/desk/mcp", "/v1/catalogues/desk/tools/echo/call", "/status", "/admin/reload"):
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nTransfer-Encoding: chunked\r\n"
            body = b"0\r\n" + f"Authorization: Bearer {ANA.token}\r\n\r\n".encode()
            answer = listener.send(f"{head}Connection: close\r\n\r\n".encode(), body)
            assert answer.status == 401, (path, answer)
        hostless = b"POST /livez HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert listener.send(hostless, b"0\r\nHost: localhost\r\n\r\n").status == 421


def test_endless_trailers_take_no_memory(wire: Wire, admin: Wire) -> None:
    for listener in (wire, admin):
        for piece in (b"x: y\r\n" * 10_000, b"x" * 65_536):
            before = listener.resident()
            head = b"POST /desk/mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
            assert listener.send(head, *[piece] * 2000).status in (0, 400, 401)
            assert listener.resident() - before < 32 << 20


@pytest.mark.parametrize(
    "target",
    [
        "/livez/../v1/catalogues",
        "/livez/%2e%2e/v1/catalogues",
        "/livez%2f..%2fv1/catalogues",
        "/v1/docs/../catalogues",
        "/v1/docs/%2e%2e/%2e%2e/desk/mcp",
        "/livez/mcp",
        "/readyz/desk/mcp",
        "/.well-known/oauth-protected-resource/../../v1/catalogues",
        "//v1/catalogues",
        "/v1//catalogues",
        "/V1/catalogues",
        "/v1/catalogues/",
        "/v1/catalogues%00",
        "/v1/catalogues;x",
        "/v1/catalogues#x",
    ],
)
def test_no_way_of_writing_a_path_leads_around_the_credential(target: str, wire: Wire) -> None:
    for method in ("GET", "POST"):
        answer = wire.request(method, target, token=None)
        assert answer.status in (400, 401, 404, 405), answer
        assert b"desk" not in answer.body


@pytest.mark.parametrize("target", ["*", "localhost:80", "http://localhost", "", "é", "/\x7f", "http://["])
def test_targets_that_are_none_are_refused(target: str, wire: Wire) -> None:
    for method in ("GET", "OPTIONS", "CONNECT"):
        assert wire.request(method, target).status == (204 if (method, target) == ("OPTIONS", "*") else 400)
    assert wire.is_up()


def test_origins_are_checked_on_every_route_without_any_setting(wire: Wire) -> None:
    for origin in ("null", "http://evil.com", "http://localhost:9", "https://app.example.com.evil.com"):
        found = {wire.request(method, path, f"Origin: {origin}").status for method, path in routes()}
        assert found == {403}, origin
    own = f"localhost:{wire.port}"
    assert wire.request("GET", "/v1/catalogues", f"Origin: http://{own}", host=own).status == 200
    assert wire.request("GET", "/v1/catalogues", "Origin: https://app.example.com").status == 200


def test_page_of_a_listed_origin_asks_without_a_credential_and_reads_what_it_then_gets(wire: Wire) -> None:
    page = "Origin: https://app.example.com"
    asked = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,content-type")
    for target in ("/desk/mcp", "/v1/catalogues/desk/tools/echo/call", "/.well-known/oauth-protected-resource"):
        leave = wire.request("OPTIONS", target, page, *asked, token=None)
        assert leave.status == 204, leave
        assert "access-control-allow-headers: authorization, content-type" in leave.head
    for token in (ANA.token, None):
        assert (
            "access-control-allow-origin: https://app.example.com"
            in wire.request("GET", "/v1/catalogues", page, token=token).head
        )


# --- bodies ---


def post_routes() -> Iterator[str]:
    for operation in OPERATIONS:
        if operation.body:
            yield re.sub(r"\{\w+\}", "desk", operation.path)
    yield from ("/desk/mcp", "/mcp")


def encode_chunks(body: bytes, size: int = 512) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("path", list(post_routes()))
def test_body_limit_holds_on_every_route_however_the_length_is_sent(path: str, wire: Wire) -> None:
    large = json.dumps({"x": "a" * (2 * MAX_BODY)}).encode()
    encoded = "Transfer-Encoding: chunked"

    assert wire.request("POST", path, JSON, body=large).status == 413
    assert wire.request("POST", path, JSON, encoded, body=encode_chunks(large)).status == 413
    assert wire.request("POST", path, JSON, encoded, body=b"fffffff\r\n" + large).status == 413
    assert wire.request("POST", path, JSON, f"Content-Length: {10**12}", body=large).status == 413
    fits = wire.request("POST", path, JSON, encoded, body=encode_chunks(LIST))
    assert fits.status in (200, 400, 404), fits


@pytest.mark.parametrize("path", list(post_routes()))
def test_lengths_that_lie_are_refused_and_nothing_is_smuggled(path: str, wire: Wire) -> None:
    smuggled = b"GET /v1/catalogues HTTP/1.1\r\nHost: localhost\r\n\r\n"
    lies = [
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
        ("Transfer-Encoding: xchunked",),
        ("Transfer-Encoding : chunked",),
        ("Content-Length: -1",),
        ("Content-Length: 0x10",),
        ("Content-Length: 1e3",),
        ("Content-Length: 99999999999999999999999",),
    ]
    for headers in lies:
        answer = wire.request("POST", path, JSON, *headers, body=b"0\r\n\r\n" + smuggled)
        assert answer.status in (0, 400, 413), (headers, answer)
        assert b"desk" not in answer.body
        assert answer.body.count(b"HTTP/1.1") == 0
    assert wire.is_up()


def test_body_shorter_than_declared_reaches_nothing(wire: Wire) -> None:
    for path in post_routes():
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ANA.token}\r\n{JSON}\r\n"
        with socket.create_connection(("127.0.0.1", int(wire.port)), timeout=PATIENCE) as connection:
            connection.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + LIST)
            connection.shutdown(socket.SHUT_WR)
            assert _answer(connection).status in (0, 400, 500)
    assert wire.is_up()


def test_bodies_of_requests_that_have_none_are_not_read(wire: Wire) -> None:
    answer = wire.request("GET", "/v1/catalogues", f"Content-Length: {10**9}", body=b"x" * 100_000)

    assert answer.status == 200


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "zstd"])
def test_encoded_bodies_are_not_unpacked(coding: str, wire: Wire) -> None:
    for path in post_routes():
        answer = wire.request("POST", path, JSON, f"Content-Encoding: {coding}", body=b"\x1f\x8b" + b"\0" * 100)
        assert answer.status in (400, 415), answer


# --- heads ---


def test_large_headers_are_refused_before_authentication(wire: Wire) -> None:
    filler = [f"X-{number}: {'a' * 1000}" for number in range(40)]

    assert wire.request("GET", "/v1/catalogues", *filler).status == 431
    assert wire.request("GET", "/v1/catalogues", *filler, token=None).status == 431


@pytest.mark.parametrize("piece", [b"a" * 4096, b"a: b\r\n" * 700], ids=["one header", "many headers"])
def test_head_that_does_not_end_is_cut_off(piece: bytes, wire: Wire) -> None:
    answer = wire.send(b"GET / HTTP/1.1\r\nX: ", *[piece] * 2000)

    assert answer.status in (0, 400, 431)  # the answer is lost if a client does not stop to read it
    assert wire.is_up()


def test_target_that_does_not_end_is_cut_off(wire: Wire) -> None:
    assert wire.send(b"GET /", *[b"a" * 4096] * 2000).status in (0, 400)
    assert wire.is_up()


@pytest.mark.parametrize(
    "bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10,
        b"GET\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\nHost: localhost\n\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA\0B: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    ],
    ids=[
        "TLS",
        "no target",
        "blank lines",
        "HTTP/9.9",
        "HTTP/2",
        "bare line feeds",
        "folded",
        "NUL",
        "blank before colon",
    ],
)
def test_what_is_not_http_is_refused(bytes: bytes, wire: Wire) -> None:
    with socket.create_connection(("127.0.0.1", int(wire.port)), timeout=PATIENCE) as connection:
        connection.sendall(bytes)
        connection.shutdown(socket.SHUT_WR)
        assert _answer(connection).status in (0, 400, 401, 421)
    assert wire.is_up()


def test_upgrades_are_not_taken(wire: Wire) -> None:
    upgrade = ["Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    answer = wire.request("GET", "/v1/catalogues", *upgrade, "Connection: Upgrade", token=None)

    assert answer.status == 401


def test_admin_plane_knows_no_route_of_the_data_plane(tmp_path: Path) -> None:
    documents = [
        *base_documents(["tokens"]),
        tokens_of([ANA]),
        http_tool("echo", 1),
        catalogue("desk", ["role:staff"], ["*"]),
    ]
    project = write_project(tmp_path / "p", documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")
    with start_gateway_process(project, tmp_path / "data", env=environ_of([ANA])) as gateway:
        admin = Wire(gateway.admin_url, gateway.process.pid)
        health = {"/livez", "/readyz"}
        found = {(method, path): admin.request(method, path) for method, path in routes() if path not in health}

        assert {answer.status for answer in found.values()} <= {404, 405}
        assert b"this is the admin plane" in found["GET", "/v1/catalogues"].body
        assert admin.request("GET", "/status", token=None).status in (401, 404)
        assert admin.request("GET", "/livez", host="evil.com").status == 421
        for slashed in ("/status/", "/metrics/", "/admin/reload/"):  # no trailing slash, on either listener
            assert admin.request("GET", slashed).status == 404
