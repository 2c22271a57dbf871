"""Approval webhooks: signed, retried until delivered, without arguments, and only to declared receivers."""

import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from datetime import timedelta
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.approvals.webhook_delivery import (
    MOST_ATTEMPTS,
    InvalidWebhook,
    WebhookDeliverer,
    WebhookTarget,
    retry_delay,
    sign_headers,
    webhooks_by_event,
)
from gateway.errors import ProgramError
from gateway.http_client.pool import HttpConnections
from tests.approvals.held_calls import NOON, ApprovalFixture, action, make_approval_fixture, refund

pytestmark = pytest.mark.anyio

SECRET = "a secret that is long enough"


class Receiver:
    """Answers with the next of its statuses (the last one for ever) and stores what it receives."""

    def __init__(self) -> None:
        self.statuses = [200]
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.received.append((dict(request.headers), await request.read()))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.Response(status=status, headers={"Location": self.url} if status == 307 else {})

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.received]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined] # an asyncio server has sockets
    receiver.url = f"http://127.0.0.1:{port}/hook"
    yield receiver
    await runner.cleanup()


@pytest.fixture
async def connections() -> AsyncIterator[HttpConnections]:
    connections = HttpConnections()
    yield connections
    await connections.close()


def hook(url: str, **changes: Any) -> WebhookTarget:
    return WebhookTarget(**{"name": "chat", "url": url, "secret": lambda: SECRET, **changes})


class WebhookFixture:
    """Approvals whose events are sent to one webhook."""

    def __init__(self, desk: ApprovalFixture, webhook: WebhookTarget, connections: HttpConnections) -> None:
        self.desk = desk
        self.messenger = WebhookDeliverer(
            desk.store,
            [webhook],
            connections=connections,
            base_url="https://gateway.example.com/",
            clock=desk.clock,
            jitter=lambda: 0.0,
        )


@pytest.fixture
async def webhooks(tmp_path: Path, receiver: Receiver, connections: HttpConnections) -> AsyncIterator[WebhookFixture]:
    webhook = hook(receiver.url)
    async with make_approval_fixture(tmp_path / "gateway.db", subscribers=webhooks_by_event([webhook])) as desk:
        yield WebhookFixture(desk, webhook, connections)


async def test_request_is_sent_with_names_and_a_link_alone(webhooks: WebhookFixture, receiver: Receiver) -> None:
    id = await webhooks.desk.pending(refund(action(arguments={"amount": 700, "iban": "DE-SECRET"})))

    assert await webhooks.messenger.send_due() == 1

    [(headers, body)] = receiver.received
    message = json.loads(body)
    assert message == {
        "id": headers["Webhook-Id"],
        "type": "approval.requested",
        "timestamp": "2026-05-01T12:00:00+00:00",
        "data": {
            "approval": id,
            "state": "pending",
            "tool": "payment_refund",
            "catalogue": "support",
            "rule": "refunds-over-500",
            "reason": "A refund above the limit",
            "requester": "user:ada",
            "tenant": "acme",
            "approvers": ["role:finance-lead"],
            "needed": 1,
            "expiresAt": "2026-05-01T12:30:00+00:00",
            "href": f"https://gateway.example.com/v1/approvals/{id}",
        },
    }
    assert b"DE-SECRET" not in body
    assert b"700" not in body


async def test_receiver_can_check_who_wrote_it(webhooks: WebhookFixture, receiver: Receiver) -> None:
    await webhooks.desk.pending()

    await webhooks.messenger.send_due()

    [(headers, body)] = receiver.received
    content = f"{headers['Webhook-Id']}.{headers['Webhook-Timestamp']}.".encode() + body
    digest = hmac.new(SECRET.encode(), content, sha256).digest()
    assert headers["Webhook-Signature"] == f"v1,{b64encode(digest).decode()}"
    assert headers["Webhook-Timestamp"] == str(int(NOON.timestamp()))


async def test_every_event_is_sent_once(webhooks: WebhookFixture, receiver: Receiver) -> None:
    await webhooks.desk.granted()
    await webhooks.desk.pending(refund(action(arguments={"late": True}), needed=2))
    webhooks.desk.clock.advance(minutes=30)
    await webhooks.desk.approvals.sweep()

    assert await webhooks.messenger.send_due() == 5
    assert await webhooks.messenger.send_due() == 0

    sent = [(body["type"], body["data"]["state"]) for body in receiver.bodies()]
    assert sorted(sent) == [
        ("approval.decided", "granted"),
        ("approval.expired", "expired"),
        ("approval.expired", "expired"),
        ("approval.requested", "pending"),
        ("approval.requested", "pending"),
    ]
    assert len({body["id"] for body in receiver.bodies()}) == 5


async def test_expiry_found_by_a_caller_is_sent(webhooks: WebhookFixture, receiver: Receiver) -> None:
    await webhooks.desk.pending()
    webhooks.desk.clock.advance(minutes=30)
    await webhooks.desk.again()

    await webhooks.messenger.send_due()

    assert sorted(body["type"] for body in receiver.bodies()) == [
        "approval.expired",
        "approval.requested",
        "approval.requested",
    ]


@pytest.mark.parametrize("status", [500, 404, 307, 410])
async def test_failed_delivery_is_retried(webhooks: WebhookFixture, receiver: Receiver, status: int) -> None:
    receiver.statuses = [status, 204]
    await webhooks.desk.pending()

    first = await webhooks.messenger.send_due()
    at_once = await webhooks.messenger.send_due()
    meanwhile = dict(webhooks.messenger.problems)
    webhooks.desk.clock.advance(seconds=5)
    later = await webhooks.messenger.send_due()

    assert (first, at_once, later) == (0, 0, 1)
    assert (meanwhile, webhooks.messenger.problems) == ({"chat": f"it answered {status}"}, {})
    assert len(receiver.received) == 2
    assert len({body["id"] for body in receiver.bodies()}) == 1


async def test_notice_outlives_the_process(tmp_path: Path, receiver: Receiver, connections: HttpConnections) -> None:
    webhook = hook(receiver.url)
    async with make_approval_fixture(tmp_path / "gateway.db", subscribers=webhooks_by_event([webhook])) as desk:
        await desk.pending()

    async with make_approval_fixture(tmp_path / "gateway.db") as desk:
        assert await WebhookFixture(desk, webhook, connections).messenger.send_due() == 1


async def test_undeliverable_notice_is_given_up(
    webhooks: WebhookFixture, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses = [500]
    await webhooks.desk.pending()

    for _ in range(MOST_ATTEMPTS + 1):
        await webhooks.messenger.send_due()
        webhooks.desk.clock.advance(hours=6)

    assert len(receiver.received) == MOST_ATTEMPTS
    assert [each.levelname for each in caplog.records].count("ERROR") == 1


async def test_webhook_that_is_down_does_not_keep_others_waiting(
    tmp_path: Path, receiver: Receiver, connections: HttpConnections
) -> None:
    hooks = [hook("http://127.0.0.1:1/hook"), hook(receiver.url, name="mail", events=frozenset({"decided"}))]
    async with make_approval_fixture(tmp_path / "gateway.db", subscribers=webhooks_by_event(hooks)) as desk:
        await desk.granted()
        messenger = WebhookDeliverer(
            desk.store, hooks, connections=connections, base_url="http://here", clock=desk.clock
        )

        assert await messenger.send_due() == 1

    assert [body["type"] for body in receiver.bodies()] == ["approval.decided"]


@pytest.mark.parametrize(
    ("networks", "sent"), [([], 0), (["10.0.0.0/8"], 0), (["127.0.0.0/8"], 1)], ids=["none", "another", "declared"]
)
async def test_name_leads_inside_only_where_that_is_declared(
    tmp_path: Path, receiver: Receiver, networks: list[str], sent: int
) -> None:
    async def lookup(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    connections = HttpConnections(lookup=lookup)
    url = receiver.url.replace("127.0.0.1", "hooks.example.com")
    webhook = hook(url, networks=tuple(map(ip_network, networks)))
    async with make_approval_fixture(tmp_path / "gateway.db", subscribers=webhooks_by_event([webhook])) as desk:
        await desk.pending()

        assert await WebhookFixture(desk, webhook, connections).messenger.send_due() == sent
    await connections.close()

    assert len(receiver.received) == sent


@pytest.mark.parametrize("secret", ["short", "whsec_c2hvcnQ=", ""])
async def test_nothing_is_sent_with_a_secret_that_can_be_guessed(
    tmp_path: Path, receiver: Receiver, connections: HttpConnections, secret: str
) -> None:
    webhook = hook(receiver.url, secret=lambda: secret)
    async with make_approval_fixture(tmp_path / "gateway.db", subscribers=webhooks_by_event([webhook])) as desk:
        await desk.pending()

        assert await WebhookFixture(desk, webhook, connections).messenger.send_due() == 0

    assert receiver.received == []


async def test_secret_that_is_gone_delays(tmp_path: Path, receiver: Receiver, connections: HttpConnections) -> None:
    def gone() -> str:
        raise ProgramError("the secret is not there")

    webhook = hook(receiver.url, secret=gone)
    async with make_approval_fixture(tmp_path / "gateway.db", subscribers=webhooks_by_event([webhook])) as desk:
        await desk.pending()

        assert await WebhookFixture(desk, webhook, connections).messenger.send_due() == 0

    assert receiver.received == []


def test_secrets_are_read_as_the_specification_writes_them() -> None:
    key = b"0123456789abcdef0123"

    encoded = sign_headers(b"{}", "id", secret=f"whsec_{b64encode(key).decode()}", at=NOON)
    plain = sign_headers(b"{}", "id", secret=key.decode(), at=NOON)
    neither = sign_headers(b"{}", "id", secret="whsec_not base64 at all", at=NOON)

    assert encoded == plain
    assert neither["Webhook-Signature"] != plain["Webhook-Signature"]
    assert len(b64decode(encoded["Webhook-Signature"].removeprefix("v1,"))) == 32


def test_delays_grow_up_to_a_limit_and_differ() -> None:
    seconds = [retry_delay(attempt, jitter=0.0).total_seconds() for attempt in (1, 2, 3, 13, 14, 1000)]

    assert seconds == [5, 10, 20, 20480, 21600, 21600]
    assert retry_delay(1, jitter=0.5) == timedelta(seconds=3.75)


@pytest.mark.parametrize(
    "url", ["ftp://example.com/", "https://user@example.com/", "/hook", "https://example.com/{tool}", "https://1.2/"]
)
def test_webhook_has_a_plain_url(url: str) -> None:
    with pytest.raises(InvalidWebhook, match="webhook chat: the URL"):
        hook(url)


def test_no_secret_shows_in_the_text_of_a_webhook() -> None:
    assert "secret" not in repr(hook("https://example.com/"))


async def test_full_queue_drops_notices_and_logs_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with make_approval_fixture(
        tmp_path / "gateway.db", subscribers={"requested": ["chat"]}, most_notices=1
    ) as desk:
        await desk.pending()
        await desk.pending(refund(action(arguments={"second": True})))

        leased = await desk.store.lease_deliveries("chat", at=NOON, until=NOON, limit=10)

    assert len(leased) == 1
    assert "too many deliveries wait" in caplog.text
