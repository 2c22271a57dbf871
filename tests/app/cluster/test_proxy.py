"""Requests that belong to another gateway are forwarded to it unchanged, and to no other process."""

import asyncio
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from gateway.app.cluster.peer_router import PeerRouter, derive_peer_id, host_of, place_of
from gateway.errors import StoreUnavailable
from gateway.server.http.asgi import SCOPE_PRINCIPAL
from gateway.server.http.peer_handshake import ChannelKey
from tests.server.http.peer_channel import canary, door_at

pytestmark = pytest.mark.anyio

OWN = "http://127.0.0.1:1"
HERE = derive_peer_id(OWN)
KEY = ChannelKey(b"k" * 32)
CALLER = ("203.0.113.9", 4711)


class Other:
    """Another gateway: a real listener that records what reaches it."""

    url = ""

    def __init__(self) -> None:
        self.asked = 0

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked += 1
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        framing = {
            "session": headers.get("mcp-session-id"),
            "token": headers.get("authorization"),
            "target": (scope["raw_path"] + b"?" + scope["query_string"]).decode(),
            "body": body.decode(),
            "client": scope["client"],
            "caller": headers.get("gateway-caller"),
        }
        await send({"type": "http.response.start", "status": 200, "headers": [(b"mcp-session-id", b"theirs")]})
        await send({"type": "http.response.body", "body": json.dumps(framing).encode()})


@pytest.fixture
async def other() -> AsyncIterator[Other]:
    """The name contains the port, so the listener is opened first."""
    other = Other()
    async with canary() as free:
        port = free.port
    other.url = f"http://127.0.0.1:{port}"
    async with door_at(KEY, host_of(derive_peer_id(other.url)), {"forward": other.app}, port=port):
        yield other


class Asking:
    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked = 0
        self.is_down = False
        self.here: list[tuple[dict[bytes, bytes], bytes]] = []
        self.peers = PeerRouter(self.app, own=OWN, addresses=self.known, key=KEY)

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

    async def ask(
        self,
        *parts: bytes,
        method: str = "POST",
        path: bytes = b"/desk/mcp",
        query: bytes = b"a=b",
        is_let_in: bool = True,
        is_passed_on: bool = False,
        **headers: str,
    ) -> tuple[int, dict[bytes, bytes], bytes]:
        framing = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope: dict[str, Any] = {"type": "http", "method": method, "path": path.decode("latin-1"), "raw_path": path}
        scope |= {"headers": framing, "query_string": query, "client": CALLER}
        scope |= {SCOPE_PRINCIPAL: "somebody"} if is_let_in else {}
        left = [{"type": "http.request", "body": each, "more_body": True} for each in parts]
        left.append({"type": "http.request", "body": b"", "more_body": False})
        sent: list[Any] = []

        async def receive() -> Any:
            return left.pop(0) if left else await _never()

        async def send(message: Any) -> None:
            sent.append(message)

        await (self.peers.back if is_passed_on else self.peers.front)(scope, receive, send)
        await self.peers.close()
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
    id = f"{derive_peer_id(other.url)}.theirs"

    status, headers, body = await asking.ask(
        b"one", b"two", mcp_session_id=id, authorization="Bearer t", transfer_encoding="chunked"
    )

    assert (status, {name.lower(): value for name, value in headers.items()}[b"mcp-session-id"]) == (200, b"theirs")
    assert json.loads(body) == {
        "session": id,
        "token": "Bearer t",
        "target": "/desk/mcp?a=b",
        "body": "onetwo",
        "client": list(CALLER),
        "caller": None,
    }
    assert asking.here == []


async def test_caller_cannot_choose_the_address_it_comes_from(other: Other) -> None:
    asking = Asking(other.url)

    _, _, body = await asking.ask(mcp_session_id=f"{derive_peer_id(other.url)}.x", gateway_caller="10.0.0.1 80")

    assert (json.loads(body)["client"], json.loads(body)["caller"]) == (list(CALLER), None)


async def test_nothing_is_passed_on_for_who_was_not_let_in(other: Other) -> None:
    asking = Asking(other.url)

    status, _, body = await asking.ask(mcp_session_id=f"{derive_peer_id(other.url)}.x", is_let_in=False)

    assert (status, body, other.asked, asking.asked) == (200, b"here", 0, 0)


async def test_what_was_passed_on_is_not_passed_on_again(other: Other) -> None:
    asking = Asking(other.url)

    assert (await asking.ask(mcp_session_id=f"{derive_peer_id(other.url)}.x", is_passed_on=True))[0] == 404
    assert (await asking.ask(mcp_session_id=f"{HERE}.x", is_passed_on=True))[2] == b"here"
    assert (await asking.ask(is_passed_on=True))[2] == b"here"
    assert other.asked == 0


async def test_gateway_with_another_secret_is_sent_nothing(other: Other, caplog: pytest.LogCaptureFixture) -> None:
    asking = Asking(other.url)
    asking.peers = PeerRouter(asking.app, own=OWN, addresses=asking.known, key=ChannelKey(b"x" * 32))

    assert (await asking.ask(mcp_session_id=f"{derive_peer_id(other.url)}.x"))[0] == 404
    assert other.asked == 0
    assert "GATEWAY_PEER_KEY_FILE" in caplog.text


async def test_targets_that_are_no_paths_lead_nowhere(other: Other) -> None:
    """Whatever a target looks like, the gateway connects only to the gateway that has the session."""
    asking = Asking(other.url)
    random = Random(7)
    id = f"{derive_peer_id(other.url)}.x"
    async with canary() as trap:
        where = f"127.0.0.1:{trap.port}".encode()
        starts = [b"*@", b"@", b"http://", b"//", b"/\\", b"", b"*", b":80@", b"/@", b"?@", b"#@", b"/#", b"\xff@"]
        for _ in range(1500):
            path = (
                random.choice(starts) + where + bytes(random.choices(b"/@:?#*.%a\x00\x7f \xe9", k=random.randrange(6)))
            )
            query = bytes(random.choices(b"a=&@:/?#\x00", k=random.randrange(4)))
            status, _, body = await asking.ask(path=path, query=query, method="GET", mcp_session_id=id)
            if status == 200:
                assert json.loads(body)["target"] == f"{path.decode()}?{query.decode()}"
                assert path.startswith(b"/")
            elif status != 400:  # the other gateway's listener refuses a path that begins with two slashes
                assert (status, json.loads(body)["code"]) == (404, "E_SESSION_GONE")
    assert trap.heard == []
    assert 0 < other.asked < 1500


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("http://10.0.0.7:8079", ("10.0.0.7", 8079)),
        ("http://[fd00::7]:8079", ("fd00::7", 8079)),
        *(
            (each, None)
            for each in ("https://a:1", "http://a", "http://u@a:1", "http://a:1/x", "http://a:x", "", "a:1")
        ),
        ("http://[a:1", None),
    ],
)
def test_only_plain_addresses_of_gateways_are_known(address: str, place: object) -> None:
    assert place_of(address) == place


@pytest.mark.parametrize("id", ["plain", "0123456789ab", "0123456789AB.x", "short.x"])
async def test_id_of_no_gateway_is_judged_here(id: str) -> None:
    asking = Asking()

    assert (await asking.ask(mcp_session_id=id))[0] == 200
    assert asking.here[0][0][b"mcp-session-id"] == id.encode()


async def test_session_of_a_gateway_that_is_gone_is_gone(other: Other) -> None:
    asking = Asking("http://127.0.0.1:2")
    gone = [
        await asking.ask(mcp_session_id="0123456789ab.x"),
        await asking.ask(mcp_session_id=f"{derive_peer_id('http://127.0.0.1:2')}.x"),
        await asking.ask(mcp_session_id=f"{derive_peer_id(other.url)}.x", is_passed_on=True),
    ]

    assert [status for status, _, _ in gone] == [404, 404, 404]
    assert all(b"E_SESSION_GONE" in body for _, _, body in gone)
    assert asking.asked == 1


async def test_no_gateway_is_known_while_the_database_is_gone() -> None:
    asking = Asking()
    asking.is_down = True

    assert (await asking.ask(mcp_session_id="0123456789ab.x"))[0] == 404


async def test_answer_to_a_call_reaches_the_gateway_that_runs_it(other: Other) -> None:
    asking = Asking(other.url)
    body = b'{"params": {"requestState" : "%s.sealed"}}' % derive_peer_id(other.url).encode()

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

    framing: dict[str, Any] = {} if length == "" else {"content_length": length or str(len(body))}
    assert (await asking.ask(body[:9], body[9:], **framing))[2] == b"here"

    assert asking.here[0][1] == body
