"""Requests about what another gateway has: passed on to it as they came, and to nobody else."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from gateway.errors import StoreUnavailable
from gateway.runtime.peers import Peers, named

pytestmark = pytest.mark.anyio

OWN = "http://127.0.0.1:1"
HERE = named(OWN)


class Other:
    """Another gateway: a real server that tells what reached it."""

    url = ""

    async def handle(self, request: web.Request) -> web.Response:
        told = {
            "session": request.headers.get("mcp-session-id"),
            "token": request.headers.get("authorization"),
            "path": request.raw_path,
            "body": (await request.read()).decode(),
            "passed": request.headers.get("gateway-passed-on"),
        }
        return web.json_response(told, headers={"mcp-session-id": "theirs"})


@pytest.fixture
async def other() -> AsyncIterator[Other]:
    other = Other()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", other.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    other.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield other
    await runner.cleanup()


class Asking:
    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked = 0
        self.is_down = False
        self.here: list[tuple[dict[bytes, bytes], bytes]] = []
        self.peers = Peers(self.app, own=OWN, addresses=self.known)

    async def known(self) -> tuple[str, ...]:
        self.asked += 1
        if self.is_down:
            raise StoreUnavailable("gone")
        return self.addresses

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.here.append((dict(scope["headers"]), body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"mcp-session-id", b"ours")]})
        await send({"type": "http.response.body", "body": b"here"})

    async def ask(self, *parts: bytes, method: str = "POST", **headers: str) -> tuple[int, dict[bytes, bytes], bytes]:
        told = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": method, "path": "/desk/mcp", "raw_path": b"/desk/mcp", "headers": told}
        left = [{"type": "http.request", "body": each, "more_body": True} for each in parts]
        left.append({"type": "http.request", "body": b"", "more_body": False})
        sent: list[Any] = []

        async def receive() -> Any:
            return left.pop(0) if left else await _never()

        async def send(message: Any) -> None:
            sent.append(message)

        await self.peers({**scope, "query_string": b"a=b"}, receive, send)
        await self.peers.close()
        self.peers._carried = None
        return sent[0]["status"], dict(sent[0]["headers"]), b"".join(each.get("body", b"") for each in sent[1:])


async def _never(*_: object) -> Any:
    await asyncio.Event().wait()


async def test_own_session_is_served_here_under_its_plain_name() -> None:
    asking = Asking()

    status, headers, _ = await asking.ask(mcp_session_id=f"{HERE}.mine")

    assert (status, headers[b"mcp-session-id"]) == (200, f"{HERE}.ours".encode())
    assert asking.here[0][0][b"mcp-session-id"] == b"mine"
    assert asking.asked == 0


async def test_session_of_another_is_passed_on_as_it_came(other: Other) -> None:
    asking = Asking(OWN, other.url)
    id = f"{named(other.url)}.theirs"

    status, headers, body = await asking.ask(b"one", b"two", mcp_session_id=id, authorization="Bearer t")

    assert (status, {name.lower(): value for name, value in headers.items()}[b"mcp-session-id"]) == (200, b"theirs")
    assert b'"session": "%s"' % id.encode() in body
    assert b'"token": "Bearer t", "path": "/desk/mcp?a=b", "body": "onetwo", "passed": "1"' in body
    assert asking.here == []


@pytest.mark.parametrize("id", ["plain", "0123456789ab", "0123456789AB.x", "short.x"])
async def test_id_of_no_gateway_is_judged_here(id: str) -> None:
    asking = Asking()

    assert (await asking.ask(mcp_session_id=id))[0] == 200
    assert asking.here[0][0][b"mcp-session-id"] == id.encode()


async def test_session_of_a_gateway_that_is_gone_is_gone(other: Other) -> None:
    asking = Asking("http://127.0.0.1:2")
    gone = [
        await asking.ask(mcp_session_id="0123456789ab.x"),
        await asking.ask(mcp_session_id=f"{named('http://127.0.0.1:2')}.x"),
        await asking.ask(mcp_session_id=f"{named(other.url)}.x", gateway_passed_on="1"),
    ]

    assert [status for status, _, _ in gone] == [404, 404, 404]
    assert all(b"E_SESSION_GONE" in body for _, _, body in gone)
    assert asking.asked == 1


async def test_nobody_is_known_while_the_database_is_gone() -> None:
    asking = Asking()
    asking.is_down = True

    assert (await asking.ask(mcp_session_id="0123456789ab.x"))[0] == 404


async def test_answer_to_a_call_reaches_the_gateway_that_runs_it(other: Other) -> None:
    asking = Asking(other.url)
    body = b'{"params": {"requestState" : "%s.sealed"}}' % named(other.url).encode()

    _, _, found = await asking.ask(body[:20], body[20:], content_length=str(len(body)))

    assert b"sealed" in found
    assert asking.here == []


@pytest.mark.parametrize(
    ("body", "length"),
    [
        (b'{"params": {"requestState": "0123456789ab.of-nobody"}}', None),
        (b'{"params": {"requestState": "plain"}}', None),
        (b'{"params": {}}', None),
        (b'{"requestState": "0123456789ab.x"}', "9999999"),
        (b'{"requestState": "0123456789ab.x"}', ""),
    ],
    ids=["nobody", "plain", "none", "large", "untold"],
)
async def test_other_bodies_are_read_here_from_their_beginning(body: bytes, length: str | None) -> None:
    asking = Asking()

    told = {} if length == "" else {"content_length": length or str(len(body))}
    assert (await asking.ask(body[:9], body[9:], **told))[2] == b"here"

    assert asking.here[0][1] == body


async def test_what_is_no_request_is_not_looked_at() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    async def known() -> tuple[str, ...]:
        return ()

    await Peers(app, own=OWN, addresses=known)({"type": "lifespan"}, _never, _never)
    assert seen == ["lifespan"]
