"""The middleware: which requests reach the app, by Host, Origin, size and credential alone."""

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from gateway.errors import Unauthenticated
from gateway.model.caller import Principal
from gateway.server.http.middleware import MAX_HEADERS, EdgeMiddleware, EdgeRules, get_principal

pytestmark = pytest.mark.anyio

ANA = Principal("user:ana", frozenset())
BEN = Principal("user:ben", frozenset())
RULES = EdgeRules(
    hosts=frozenset({"localhost", "127.0.0.1", "[::1]", "gw.example.com"}),
    origins=frozenset({"https://app.example.com", "http://[::1]:3000"}),
    open_paths=("/open",),
    challenge=lambda path, error: f'Bearer error="{error.error}", path="{path}"'.encode(),
)


@dataclass
class Seen:
    """The answer of the middleware, and the requests that passed it."""

    reached: list[MutableMapping[str, Any]] = field(default_factory=list)
    sent: list[MutableMapping[str, Any]] = field(default_factory=list)
    asked: list[bytes | None] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])


async def pass_request(scope: dict[str, Any], rules: EdgeRules = RULES) -> Seen:
    seen = Seen()

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        seen.reached.append(scope)
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})

    async def authenticate(credential: bytes | None) -> Principal:
        seen.asked.append(credential)
        if credential != b"Bearer good":
            raise Unauthenticated("invalid_token", reason="a reason for operators")
        return ANA

    async def send(message: MutableMapping[str, Any]) -> None:
        seen.sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("the edge reads no body")

    await EdgeMiddleware(app, rules, authenticate)(scope, receive, send)
    return seen


async def test_who_is_recalled_is_let_in_without_waiting() -> None:
    reached: list[Principal] = []
    unknown: list[bytes | None] = []

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        reached.append(get_principal(scope))

    async def authenticate(credential: bytes | None) -> Principal:
        unknown.append(credential)
        return BEN

    def recall(credential: bytes | None) -> Principal | None:
        if credential is None:
            raise Unauthenticated(None, reason="no credential")
        return ANA if credential == b"Bearer good" else None

    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    edge = EdgeMiddleware(app, RULES, authenticate, recall)
    await edge(request(GOOD), None, send)  # type: ignore[arg-type]  # never called
    await edge(request(("authorization", "Bearer other")), None, send)  # type: ignore[arg-type]  # never called
    await edge(request(), None, send)  # type: ignore[arg-type]  # never called

    assert (reached, unknown) == ([ANA, BEN], [b"Bearer other"])
    assert sent[0]["status"] == 401


def request(*headers: tuple[str, str], path: str = "/x", host: str | None = "localhost") -> dict[str, Any]:
    named = [*(() if host is None else (("host", host),)), *headers]
    raw = [(name.encode(), value.encode("latin-1")) for name, value in named]
    return {"type": "http", "path": path, "headers": raw}


GOOD = ("authorization", "Bearer good")


async def test_caller_with_a_credential_reaches_the_app_by_name() -> None:
    seen = await pass_request(request(GOOD))

    assert seen.status == 200
    assert get_principal(seen.reached[0]) == ANA


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST",
        "localhost:8080",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:8080",
        "gw.example.com",
        " localhost\t",
    ],
)
async def test_host_of_the_list_is_served_whatever_its_port(host: str) -> None:
    assert (await pass_request(request(GOOD, host=host))).status == 200


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example.com",
        "localhost.evil.com",
        "evil-localhost",
        "gw.example.com.evil.com",
        "evilgw.example.com",
        "localhost.",
        "localhost:",
        "localhost:80x",
        "localhost:²",
        "localhost:80:80",
        "localhost/x?",
        "a/x?",
        "localhost#",
        "localhost?",
        "a@localhost",
        "localhost@evil.com",
        "localhost,evil.com",
        "localhost evil.com",
        "::1",
        "[::1",
        "[::1]x",
        "[::1]:",
        "[::1]:x",
        "[::1]evil.com",
        "[::ffff:127.0.0.1]",
        "[::1]]",
        "127.0.0.1.evil.com",
        "127.1",
        "2130706433",
        "0.0.0.0",
        "ⓛocalhost".encode().decode("latin-1"),
    ],
)
async def test_any_other_host_is_refused_before_authentication(host: str | None) -> None:
    seen = await pass_request(request(GOOD, host=host))

    assert seen.status == 421
    assert (seen.reached, seen.asked) == ([], [])


@pytest.mark.parametrize("second", ["localhost", "evil.com"])
async def test_two_hosts_are_refused_even_if_they_agree(second: str) -> None:
    assert (await pass_request(request(GOOD, ("host", second)))).status == 421


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:8080",
        "https://localhost:8080",
        "HTTP://LOCALHOST:8080",
        "https://app.example.com",
        "https://APP.example.com",
        "http://[::1]:3000",
    ],
)
async def test_own_origin_and_those_of_the_list_may_call(origin: str) -> None:
    assert (await pass_request(request(GOOD, ("origin", origin), host="localhost:8080"))).status == 200


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "file://",
        "http://evil.com",
        "http://localhost",
        "http://localhost:8081",
        "http://localhost:8080.evil.com",
        "http://localhost:8080@evil.com",
        "http://localhost:8080/",
        "ws://localhost:8080",
        "https://app.example.com.evil.com",
        "https://app.example.com:444",
        "http://app.example.com",
        "https://evil.com/https://app.example.com",
        "https://app.example.com, https://evil.com",
        "http://[::1]:3001",
        "http://[::1]",
        "*",
    ],
)
async def test_any_other_origin_is_refused(origin: str) -> None:
    seen = await pass_request(request(GOOD, ("origin", origin), host="localhost:8080"))

    assert seen.status == 403
    assert (seen.reached, seen.asked) == ([], [])


async def test_one_wrong_origin_among_two_is_refused() -> None:
    scope = request(GOOD, ("origin", "https://app.example.com"), ("origin", "http://evil.com"))

    assert (await pass_request(scope)).status == 403


async def test_headers_have_a_bound_that_counts_names_and_values() -> None:
    used = len("host") + len("localhost") + sum(map(len, GOOD))
    fits = ("x", "a" * (MAX_HEADERS - used - 1))

    assert (await pass_request(request(GOOD, fits))).status == 200
    assert (await pass_request(request(GOOD, fits, ("y", "")))).status == 431


@pytest.mark.parametrize("path", ["/open", "/open/", "/open/a/b"])
async def test_open_paths_need_no_credential_and_have_no_principal(path: str) -> None:
    seen = await pass_request(request(path=path))

    assert (seen.status, seen.asked) == (200, [])
    with pytest.raises(KeyError):
        get_principal(seen.reached[0])


@pytest.mark.parametrize("path", ["/", "/x", "/opening", "/open.json", "/OPEN", "//open", "/x/open", "/ope"])
async def test_every_other_path_needs_a_credential(path: str) -> None:
    seen = await pass_request(request(path=path))

    assert (seen.status, seen.reached, seen.asked) == (401, [], [None])


async def test_refusal_names_the_challenge_of_its_path_and_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "gateway.server.http.middleware"):
        seen = await pass_request(request(("authorization", "Bearer bad"), path="/a/mcp"))

    headers = dict(seen.sent[0]["headers"])
    assert headers[b"www-authenticate"] == b'Bearer error="invalid_token", path="/a/mcp"'
    assert orjson.loads(seen.sent[1]["body"])["code"] == Unauthenticated.code
    assert b"operators" not in seen.sent[1]["body"]
    assert [each.getMessage() for each in caplog.records] == ["a credential was refused: a reason for operators"]


async def test_without_rules_of_its_own_the_challenge_is_plain_and_hosts_are_loopback() -> None:
    seen = await pass_request(request(path="/x"), EdgeRules())

    assert dict(seen.sent[0]["headers"])[b"www-authenticate"] == b"Bearer"
    assert (await pass_request(request(host="gw.example.com"), EdgeRules())).status == 421


@pytest.mark.parametrize("second", ["Bearer good", "Bearer bad", ""])
async def test_two_credentials_are_none_of_them(second: str) -> None:
    seen = await pass_request(request(GOOD, ("authorization", second)))

    assert seen.status == 401
    assert seen.asked == [b"Bearer good\n" + second.encode()]


async def test_web_sockets_are_closed_and_lifespans_pass() -> None:
    socket = await pass_request({"type": "websocket", "path": "/open", "headers": []})
    lifespan = await pass_request({"type": "lifespan"})

    assert (socket.reached, socket.sent) == ([], [{"type": "websocket.close", "code": 1008}])
    assert lifespan.reached == [{"type": "lifespan"}]


@pytest.mark.parametrize(
    ("scope", "code", "setting"),
    [
        (request(GOOD, host="evil.example"), "E_HOST_NOT_SERVED", "GATEWAY_ALLOWED_HOSTS"),
        (request(GOOD, ("origin", "http://evil.example")), "E_ORIGIN_NOT_ALLOWED", "GATEWAY_ALLOWED_ORIGINS"),
        (request(GOOD, ("x", "y" * MAX_HEADERS)), "E_HEADERS_TOO_LARGE", "32 KiB"),
    ],
)
async def test_refused_caller_gets_help(scope: dict[str, Any], code: str, setting: str) -> None:
    body = orjson.loads((await pass_request(scope)).sent[1]["body"])

    assert body["code"] == code
    assert setting in body["help"]
