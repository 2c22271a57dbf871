"""Webhooks of a running gateway: from documents and secrets to delivered messages and an orderly shutdown."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.app.jobs.webhook_job import WebhookJob, build_webhooks
from gateway.app.secrets import SecretMissing, Secrets
from gateway.approvals.approval_store import ApprovalRecord, WebhookDelivery
from gateway.approvals.webhook_delivery import InvalidWebhook, webhooks_by_event
from gateway.config.kinds.installation import WebhookSpec as Declared
from gateway.errors import StoreUnavailable
from tests.approvals.held_calls import make_approval_fixture

pytestmark = pytest.mark.anyio

SECRET = "a secret that is long enough"


def declared(**changes: Any) -> Declared:
    given = {"name": "chat", "url": "https://chat.example.com/hook", "secret": {"fromEnv": "CHAT"}, **changes}
    return Declared.model_validate(given)


def secrets(**environ: str) -> Secrets:
    return Secrets({"CHAT": SECRET, **environ}, Path())


class Receiver:
    """Receives messages and signals each arrival."""

    def __init__(self) -> None:
        self.came = asyncio.Event()
        self.messages: list[dict[str, Any]] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.messages.append(json.loads(await request.read()))
        self.came.set()
        return web.Response()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield receiver
    await runner.cleanup()


def test_document_and_secrets_make_a_webhook() -> None:
    [webhook] = build_webhooks([declared(events=["decided"], networks=["10.1.0.0/16"])], secrets())

    assert (webhook.name, webhook.url) == ("chat", "https://chat.example.com/hook")
    assert webhook.events == {"decided"}
    assert [str(network) for network in webhook.networks] == ["10.1.0.0/16"]
    assert webhook.secret() == SECRET
    assert SECRET not in repr(webhook)


@pytest.mark.parametrize(
    ("changes", "environ", "message"),
    [
        pytest.param({}, {"CHAT": "short"}, "webhook chat: its secret is shorter than 16 bytes", id="short"),
        pytest.param({"url": "https://2130706433/"}, {}, "webhook chat: the URL names no fixed host", id="number"),
    ],
)
def test_webhook_that_cannot_work_is_refused(changes: dict[str, Any], environ: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidWebhook) as refused:
        build_webhooks([declared(**changes)], secrets(**environ))

    assert refused.value.message == message
    assert refused.value.help


def test_missing_secret_is_refused() -> None:
    with pytest.raises(SecretMissing, match="CHAT"):
        build_webhooks([declared()], secrets(CHAT=""))


async def test_pending_messages_are_sent_until_it_is_closed(tmp_path: Path, receiver: Receiver) -> None:
    webhooks = build_webhooks([declared(url=receiver.url)], secrets())
    async with make_approval_fixture(tmp_path / "gateway.db", subscribers=webhooks_by_event(webhooks)) as desk:
        id = await desk.pending()
        notifying = WebhookJob(desk.store, webhooks, base_url="https://gateway.example.com", clock=desk.clock)
        notifying.start()
        await receiver.came.wait()
        await notifying.close()

    assert [message["data"]["href"] for message in receiver.messages] == [
        f"https://gateway.example.com/v1/approvals/{id}"
    ]
    assert notifying.problem is None
    assert notifying.status() == {
        "webhooks": [{"name": "chat", "events": ["decided", "expired", "requested"], "problem": None}],
        "problem": None,
    }


async def test_job_without_webhooks_can_be_closed_twice(tmp_path: Path) -> None:
    async with make_approval_fixture(tmp_path / "gateway.db") as desk:
        notifying = WebhookJob(desk.store, [], base_url="http://here")
        notifying.start()
        await notifying.close()
        await notifying.close()

    assert notifying.status() == {"webhooks": [], "problem": None}


class Failing:
    """A store that fails, and later has no notices; its other methods are not called."""

    def __init__(self, *failures: Exception) -> None:
        self.may_recover = asyncio.Event()
        self.asked_again = asyncio.Event()
        self._failures = list(failures)

    async def lease_deliveries(
        self, webhook: str, *, at: datetime, until: datetime, limit: int
    ) -> list[tuple[WebhookDelivery, ApprovalRecord]]:
        if self._failures:
            raise self._failures.pop(0)
        if self.may_recover.is_set():
            self.asked_again.set()
        self.may_recover.set()
        return []


async def test_outage_is_logged_once_and_over_when_the_store_answers(caplog: pytest.LogCaptureFixture) -> None:
    store = Failing(StoreUnavailable("the store is away"), ZeroDivisionError(), ZeroDivisionError())
    notifying = WebhookJob(
        store,  # type: ignore[arg-type]  # only the attributes that are used
        build_webhooks([declared()], secrets()),
        base_url="http://here",
        every=0.0,
    )
    with caplog.at_level(logging.ERROR):
        notifying.start()
        await store.asked_again.wait()
        await notifying.close()

    assert notifying.problem is None
    assert [each.getMessage() for each in caplog.records] == ["notices of approvals cannot be sent: the store is away"]


async def test_unexpected_failure_is_logged_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    store = Failing(*[ZeroDivisionError()] * 1000)
    notifying = WebhookJob(
        store,  # type: ignore[arg-type]  # only the attributes that are used
        build_webhooks([declared()], secrets()),
        base_url="http://here",
        every=3600.0,
    )
    with caplog.at_level(logging.ERROR):
        notifying.start()
        while notifying.problem is None:
            await asyncio.sleep(0)
        await notifying.close()

    assert notifying.problem == "notices of approvals cannot be sent: ZeroDivisionError"
    assert "lease_deliveries" in caplog.text


async def test_receiver_that_is_down_is_reported_by_name(tmp_path: Path) -> None:
    webhooks = build_webhooks([declared(url="http://127.0.0.1:1/hook")], secrets())
    async with make_approval_fixture(tmp_path / "gateway.db", subscribers=webhooks_by_event(webhooks)) as desk:
        await desk.pending()
        notifying = WebhookJob(desk.store, webhooks, base_url="http://here", clock=desk.clock, every=0.0)
        notifying.start()
        while notifying.problem is None:
            await asyncio.sleep(0)
        await notifying.close()

    assert notifying.problem == "webhook chat: the service cannot be reached"
    assert [each["problem"] for each in notifying.status()["webhooks"]] == ["the service cannot be reached"]
    assert "127.0.0.1" not in repr(notifying.status())
