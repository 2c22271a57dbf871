"""Event streams end when their caller loses access; other answers never do."""

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.errors import CredentialUnknown, Unauthenticated
from gateway.model.caller import Principal
from gateway.server.http.admission import AdmissionControl
from gateway.server.http.middleware import EdgeMiddleware, EdgeRules
from gateway.server.http.served_response import ServedResponse, StreamWatch

pytestmark = pytest.mark.anyio

ANA = Principal("user:ana", frozenset({"role:staff"}))
EVENTS = {"type": "http.response.start", "status": 200, "headers": [(b"Content-Type", b"text/event-stream; x=y")]}
PLAIN = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
QUICK = 0.01


@dataclass
class World:
    """The inputs of the watch, and everything that reached the client."""

    recalled: Principal | None = ANA
    verified: Principal | Exception = ANA
    stopped: bool = False
    asked: int = 0
    sent: list[MutableMapping[str, Any]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(self) -> StreamWatch:
        return StreamWatch(self.authenticate, lambda credential: self.recalled, lambda who: self.stopped, every=QUICK)

    def answer(self, watch: StreamWatch) -> ServedResponse:
        response = ServedResponse(self.send)
        response.authorize(watch, ANA, b"Bearer x", self.receive)
        return response

    async def authenticate(self, credential: bytes | None) -> Principal:
        self.asked += 1
        if isinstance(self.verified, Exception):
            raise self.verified
        return self.verified

    async def receive(self) -> MutableMapping[str, Any]:
        if not self.gone.is_set():
            self.gone.set()
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("nobody leaves")

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    @property
    def content(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.sent)

    @property
    def has_ended(self) -> bool:
        return self.sent[-1]["type"] == "http.response.body" and not self.sent[-1].get("more_body", False)


def body(content: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": more}


CHANGES: dict[str, dict[str, Any]] = {
    "revoked or expired": {"recalled": None, "verified": Unauthenticated("invalid_token", reason="revoked")},
    "nobody can tell": {"recalled": None, "verified": CredentialUnknown()},
    "another principal": {"recalled": Principal("user:eve", ANA.roles)},
    "other roles": {"recalled": None, "verified": Principal("user:ana", frozenset())},
    "in quarantine": {"stopped": True},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_silent_stream_ends_and_the_application_hears_of_it(change: dict[str, Any]) -> None:
    world = World()
    watch = world.watch()
    answer = world.answer(watch)
    assert (await answer.receive())["type"] == "http.request"
    await answer.send(dict(EVENTS))
    await answer.send(body(b"first"))
    leaving = asyncio.ensure_future(answer.receive())
    await asyncio.sleep(5 * QUICK)
    assert not leaving.done()
    for name, value in change.items():
        setattr(world, name, value)

    assert (await asyncio.wait_for(leaving, 20))["type"] == "http.disconnect"
    await answer.send(body(b"late"))
    await answer.send(body(b"", more=False))
    assert (await answer.receive())["type"] == "http.disconnect"
    answer.leave()

    assert world.content == b"first"
    assert world.has_ended
    assert len(world.sent) == 3
    assert len(watch) == 0


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_no_content_is_sent_after_the_change_however_soon_it_comes(change: dict[str, Any]) -> None:
    world = World()
    answer = world.answer(StreamWatch(world.authenticate, lambda _: world.recalled, lambda who: world.stopped))
    await answer.send(dict(EVENTS))
    await answer.send(body(b"first"))
    for name, value in change.items():
        setattr(world, name, value)
    await answer.send(body(b"second"))
    await answer.send(body(b"third", more=False))
    answer.leave()

    assert (world.content, world.has_ended) == (b"first", True)
    assert (await answer.receive())["type"] == "http.request"
    assert (await asyncio.wait_for(answer.receive(), 20))["type"] == "http.disconnect"


async def test_stream_of_an_admitted_caller_goes_on_to_its_own_end() -> None:
    world = World(recalled=None)
    watch = world.watch()
    answer = world.answer(watch)
    await answer.send(dict(EVENTS))
    await asyncio.sleep(10 * QUICK)
    await answer.send(body(b"all"))
    await answer.send(body(b" of it", more=False))
    await answer.look()
    answer.leave()
    asked = world.asked
    await asyncio.sleep(5 * QUICK)

    assert (world.content, world.has_ended, len(world.sent)) == (b"all of it", True, 3)
    assert asked > 2
    assert world.asked == asked


async def test_two_looks_at_once_end_a_stream_once() -> None:
    world = World(recalled=None, verified=Unauthenticated("invalid_token", reason="revoked"))
    answer = world.answer(StreamWatch(world.authenticate, lambda _: world.recalled, lambda who: False))
    await answer.send(dict(EVENTS))
    await asyncio.gather(answer.look(), answer.look(), answer.send(body(b"x")))
    answer.leave()

    assert [each["type"] for each in world.sent] == ["http.response.start", "http.response.body"]


async def test_verification_that_hangs_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.http.served_response.WITHIN", QUICK)
    world = World(recalled=None)

    async def hang(credential: bytes | None) -> Principal:
        await asyncio.Event().wait()
        raise AssertionError("never")

    answer = world.answer(StreamWatch(hang, lambda _: None, lambda who: False))
    await answer.send(dict(EVENTS))
    await answer.send(body(b"x"))
    answer.leave()

    assert (world.content, world.has_ended) == (b"", True)


async def test_plain_answer_is_left_alone() -> None:
    world = World(stopped=True, recalled=None, verified=Unauthenticated("invalid_token", reason="revoked"))
    watch = world.watch()
    answer = world.answer(watch)
    await answer.send(dict(PLAIN))
    await answer.send(body(b"whole"))
    await answer.send(body(b"", more=False))
    answer.leave()

    assert world.content == b"whole"
    assert (world.asked, len(watch)) == (0, 0)


async def test_client_that_leaves_is_heard_as_before() -> None:
    world = World()
    left = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        if not world.gone.is_set():
            world.gone.set()
            return {"type": "http.request", "body": b"", "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    answer = ServedResponse(world.send)
    answer.authorize(world.watch(), ANA, None, receive)
    await answer.receive()
    waiting = asyncio.ensure_future(answer.receive())
    await asyncio.sleep(0)
    left.set()

    assert (await asyncio.wait_for(waiting, 20))["type"] == "http.disconnect"


async def test_edge_watches_what_it_let_in() -> None:
    world = World()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(dict(EVENTS))
        await send(body(b"one"))
        world.stopped = True
        while (await receive())["type"] != "http.disconnect":
            pass
        await send(body(b"two"))

    edge = EdgeMiddleware(app, EdgeRules(), world.authenticate, is_stopped=lambda who: world.stopped)
    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer x")]
    scope = {"type": "http", "path": "/x", "headers": headers}
    await asyncio.wait_for(edge(scope, world.receive, world.send), 20)

    assert (world.content, world.has_ended) == (b"one", True)


async def test_middleware_shares_one_response() -> None:
    world = World()
    refused: list[int] = []

    class Meter:
        count_rejection = staticmethod(refused.append)

    meter: Any = Meter()  # all that a response uses
    outer = ServedResponse(world.send, meter=meter)
    inner = ServedResponse.of(outer.send)
    await inner.send({**PLAIN, "status": 404})
    await inner.send(body(b"", more=False))

    assert inner is outer
    assert ServedResponse.of(world.send) is not outer
    assert (outer.status, outer.is_over, outer.is_stream, refused) == (404, True, False, [404])
    assert len(world.sent) == 2


async def test_stream_gives_its_place_back_when_it_begins() -> None:
    admission = AdmissionControl(2, queue=0, wait=0)
    assert await admission.acquire({"headers": []})
    response = ServedResponse(World().send, admission)
    await response.send(dict(EVENTS))
    during = admission.active
    response.release()

    assert (during, admission.active) == (0, 0)
