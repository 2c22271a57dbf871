"""Webhooks of a running gateway: told of approvals by every process, each notice by one of them."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from ipaddress import ip_network
from typing import Any, Final

from gateway.approvals.webhooks import InvalidWebhook, Messenger, Webhook, signed
from gateway.backends.connections import Connections
from gateway.config.specs.webhooks import Webhook as WebhookSpec
from gateway.core.events import now
from gateway.errors import GatewayError
from gateway.governance.approvals import ApprovalStore
from gateway.governance.ports import BackendFailed
from gateway.runtime.secrets import Secrets

_EVERY: Final = 1.0
_MAKE_ONE: Final = "make one with: openssl rand -base64 32"

_log: Final = logging.getLogger(__name__)


def webhooks_of(declared: Iterable[WebhookSpec], secrets: Secrets) -> tuple[Webhook, ...]:
    """Raises `SecretMissing`, or `InvalidWebhook` for an address without a host or a secret that can be guessed."""
    return tuple(_webhook(each, secrets) for each in declared)


def _webhook(declared: WebhookSpec, secrets: Secrets) -> Webhook:
    webhook = Webhook(
        declared.name,
        declared.url,
        secrets.reader(declared.secret),
        frozenset(declared.events),
        tuple(map(ip_network, declared.networks)),
    )
    try:
        signed(b"", "", secret=webhook.secret(), at=now())
    except BackendFailed as error:
        raise InvalidWebhook(f"webhook {webhook.name}: {error.message}", help=_MAKE_ONE) from None
    return webhook


class Notifying:
    """Sends notices until it is closed. `base_url` is where people reach this gateway."""

    def __init__(
        self,
        store: ApprovalStore,
        webhooks: Sequence[Webhook],
        *,
        base_url: str,
        connections: Connections | None = None,
        clock: Callable[[], datetime] = now,
        every: float = _EVERY,
    ) -> None:
        self._webhooks = tuple(webhooks)
        self._connections = connections or Connections()
        self._messenger = Messenger(
            store, self._webhooks, connections=self._connections, base_url=base_url, clock=clock
        )
        self._every = every
        self._task: asyncio.Task[None] | None = None
        self._failure: str | None = None

    def start(self) -> None:
        """Begin to send; without webhooks there is nothing to do."""
        if self._webhooks:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop sending. What was not told is still in the store, and told by whoever serves next."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._connections.close()

    @property
    def problem(self) -> str | None:
        """Why somebody is not told at present, in one line."""
        told = [f"webhook {name}: {why}" for name, why in sorted(self._messenger.problems.items())]
        return "; ".join([*told, *([self._failure] if self._failure else [])]) or None

    def status(self) -> Mapping[str, Any]:
        """For status pages: who is told of what, and whether that works. No address: it may be a credential."""
        problems = self._messenger.problems
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
                await self._messenger.send_due()
                self._failure = None
            except Exception as error:
                self._tell(error)
            await asyncio.sleep(self._every)

    def _tell(self, error: Exception) -> None:
        """Once per outage."""
        words, trace = (error.message, None) if isinstance(error, GatewayError) else (type(error).__name__, error)
        if self._failure is None:
            _log.error("nobody can be told of approvals: %s", words, exc_info=trace)
        self._failure = f"nobody can be told of approvals: {words}"
