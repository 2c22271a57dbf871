"""The job that sends webhooks about approvals; every process runs it, each notice is sent once."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from ipaddress import ip_network
from typing import Any, Final

from gateway.app.secrets import Secrets
from gateway.approvals import ApprovalStore, InvalidWebhook, WebhookDeliverer, WebhookTarget, sign_headers
from gateway.config import WebhookSpec as WebhookSpec
from gateway.errors import GatewayError
from gateway.http_client import HttpConnections
from gateway.model import BackendError, now

_EVERY: Final = 1.0
_MAKE_ONE: Final = "create one with: openssl rand -base64 32"

_log: Final = logging.getLogger(__name__)


def build_webhooks(declared: Iterable[WebhookSpec], secrets: Secrets) -> tuple[WebhookTarget, ...]:
    """Build the targets. Raises `SecretMissing`, or `InvalidWebhook` for a URL without a host or a weak secret."""
    return tuple(_build_webhook(each, secrets) for each in declared)


def _build_webhook(declared: WebhookSpec, secrets: Secrets) -> WebhookTarget:
    webhook = WebhookTarget(
        declared.name,
        declared.url,
        secrets.reader(declared.secret),
        frozenset(declared.events),
        tuple(map(ip_network, declared.networks)),
    )
    try:
        sign_headers(b"", "", secret=webhook.secret(), at=now())
    except BackendError as error:
        raise InvalidWebhook(f"webhook {webhook.name}: {error.message}", help=_MAKE_ONE) from None
    return webhook


class WebhookJob:
    """Sends notices until it is closed. `base_url` is the URL of this gateway for people."""

    def __init__(
        self,
        store: ApprovalStore,
        webhooks: Sequence[WebhookTarget],
        *,
        base_url: str,
        connections: HttpConnections | None = None,
        clock: Callable[[], datetime] = now,
        every: float = _EVERY,
    ) -> None:
        self._webhooks = tuple(webhooks)
        self._connections = connections or HttpConnections()
        self._deliverer = WebhookDeliverer(
            store, self._webhooks, connections=self._connections, base_url=base_url, clock=clock
        )
        self._every = every
        self._task: asyncio.Task[None] | None = None
        self._failure: str | None = None

    def start(self) -> None:
        """Start sending, if there are webhooks."""
        if self._webhooks:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop sending. Unsent notices stay in the store for another process."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._connections.close()

    @property
    def problem(self) -> str | None:
        """Why notices cannot be sent now, in one line."""
        failing = [f"webhook {name}: {why}" for name, why in sorted(self._deliverer.problems.items())]
        return "; ".join([*failing, *([self._failure] if self._failure else [])]) or None

    def status(self) -> Mapping[str, Any]:
        """Return the webhooks and their problems for the status, without URLs, which may be credentials."""
        problems = self._deliverer.problems
        return {
            "webhooks": [
                {"name": each.name, "events": sorted(each.events), "problem": problems.get(each.name)}
                for each in self._webhooks
            ],
            "problem": self._failure,
        }

    async def _run(self) -> None:
        while True:
            try:
                await self._deliverer.send_due()
                self._failure = None
            except Exception as error:
                self._report(error)
            await asyncio.sleep(self._every)

    def _report(self, error: Exception) -> None:
        """Log the problem, once per outage."""
        words, trace = (error.message, None) if isinstance(error, GatewayError) else (type(error).__name__, error)
        if self._failure is None:
            _log.error("notices of approvals cannot be sent: %s", words, exc_info=trace)
        self._failure = f"notices of approvals cannot be sent: {words}"
