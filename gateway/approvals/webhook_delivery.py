"""Delivery of approval events to webhooks: signed, and retried until the receiver accepts them.

Deliveries wait in the store beside their approvals, so a crash loses none and every process may send them; each is
leased to one process. A delivery may still arrive twice: its id stays the same. It carries names and a link, never an
argument. Signatures follow the Standard Webhooks specification, for which receivers have libraries.
"""

import asyncio
import hmac
import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from random import random
from typing import Any, Final
from urllib.parse import quote

from gateway.approvals.approval_store import (
    APPROVAL_EVENTS,
    ApprovalEvent,
    ApprovalRecord,
    ApprovalStore,
    WebhookDelivery,
)
from gateway.approvals.presentation import escape_invisible
from gateway.backends import parse_url_template
from gateway.errors import GatewayError, ProgramError
from gateway.http_client import HttpConnections, Network
from gateway.model import BackendError, now

MOST_ATTEMPTS: Final = 15
"""About a day, with the delays between them."""

_LEASE: Final = timedelta(minutes=1)
_LONGEST_DELAY: Final = 6 * 3600.0
_ENCODED: Final = "whsec_"
_SHORTEST_SECRET: Final = 16

_log: Final = logging.getLogger(__name__)


class InvalidWebhook(ProgramError):
    code = "E_INVALID_WEBHOOK"
    default_message = "the webhook is invalid"


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where to send which events. `secret` is read for each attempt, so that it can be rotated.

    Host names that resolve to private addresses are refused, except for `networks`, and for a host that the URL names
    as an address or as localhost.
    """

    name: str
    url: str
    secret: Callable[[], str] = field(repr=False)
    events: frozenset[ApprovalEvent] = frozenset(APPROVAL_EVENTS)
    networks: tuple[Network, ...] = ()

    def __post_init__(self) -> None:
        try:
            template = parse_url_template(self.url)
        except GatewayError as error:
            raise InvalidWebhook(f"webhook {self.name}: {error.message}", help=error.help) from error
        if template.names:
            raise InvalidWebhook(f"webhook {self.name}: the URL has a placeholder", help="write the URL out")


def webhooks_by_event(webhooks: Sequence[WebhookTarget]) -> dict[ApprovalEvent, list[str]]:
    """Return the names of the webhooks for each event, as `ApprovalService` takes them."""
    return {event: [each.name for each in webhooks if event in each.events] for event in APPROVAL_EVENTS}


class WebhookDeliverer:
    """Sends due deliveries. `base_url` is where people reach this gateway."""

    def __init__(
        self,
        store: ApprovalStore,
        webhooks: Sequence[WebhookTarget],
        *,
        connections: HttpConnections,
        base_url: str,
        clock: Callable[[], datetime] = now,
        jitter: Callable[[], float] = random,
    ) -> None:
        self._store = store
        self._webhooks = tuple(webhooks)
        self._connections = connections
        self._base_url = base_url.rstrip("/")
        self._clock = clock
        self._jitter = jitter
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """Why the last delivery to a webhook failed, by name; webhooks without a failure are missing."""
        return self._problems

    async def send_due(self) -> int:
        """Send what is due now; return how many arrived. Webhooks do not wait for each other."""
        return sum(await asyncio.gather(*map(self._send_to, self._webhooks)))

    async def _send_to(self, webhook: WebhookTarget) -> int:
        sent = 0
        while leased := await self._lease_next(webhook):
            [(notice, approval)] = leased
            failure = await self._attempt(webhook, notice, approval)
            if failure is not None:  # the next ones would fail, too
                await self._record_failure(webhook, notice, failure)
                break
            self._problems.pop(webhook.name, None)
            await self._store.delete_delivery(notice.id)
            sent += 1
        return sent

    async def _lease_next(self, webhook: WebhookTarget) -> list[tuple[WebhookDelivery, ApprovalRecord]]:
        at = self._clock()
        return await self._store.lease_deliveries(webhook.name, at=at, until=at + _LEASE, limit=1)

    async def _attempt(self, webhook: WebhookTarget, notice: WebhookDelivery, approval: ApprovalRecord) -> str | None:
        """Return `None` if the receiver accepted the delivery, otherwise why not."""
        body = json.dumps(self._message(notice, approval), separators=(",", ":")).encode()
        try:
            headers = sign_headers(body, notice.id, secret=webhook.secret(), at=self._clock())
            status = await self._post(webhook, body, headers)  # the client bounds the time until the answer
        except GatewayError as error:
            return error.message
        return None if 200 <= status < 300 else f"it answered {status}"

    async def _post(self, webhook: WebhookTarget, body: bytes, headers: dict[str, str]) -> int:
        template = parse_url_template(webhook.url)
        service = self._connections.pool(template.origin, webhook.networks)
        response = await service.send("POST", template.target({}, query=()), headers, body)
        response.close()
        return response.status

    async def _record_failure(self, webhook: WebhookTarget, notice: WebhookDelivery, failure: str) -> None:
        self._problems[webhook.name] = failure
        if notice.attempts >= MOST_ATTEMPTS:
            _log.error("webhook %s never received approval %s: %s", webhook.name, notice.approval_id, failure)
            await self._store.delete_delivery(notice.id)
            return
        delay = retry_delay(notice.attempts, jitter=self._jitter())
        _log.warning("webhook %s cannot be reached right now: %s", webhook.name, failure)
        await self._store.postpone_delivery(notice.id, until=self._clock() + delay)

    def _message(self, notice: WebhookDelivery, approval: ApprovalRecord) -> dict[str, Any]:
        request, action = approval.request, approval.request.action
        return {
            "id": notice.id,
            "type": f"approval.{notice.event}",
            "timestamp": notice.at.isoformat(),
            "data": {
                "approval": approval.id,
                "state": notice.state,
                "tool": escape_invisible(request.advertised),
                "catalogue": action.catalogue,
                "rule": request.rule,
                "reason": request.reason,
                "requester": escape_invisible(action.principal.subject),
                "tenant": action.principal.tenant,
                "approvers": list(request.approvers),
                "needed": request.needed,
                "expiresAt": approval.expires_at.isoformat(),
                "href": f"{self._base_url}/v1/approvals/{quote(approval.id, safe='')}",
            },
        }


def sign_headers(body: bytes, id: str, *, secret: str, at: datetime) -> dict[str, str]:
    """Return the headers of a message. Receivers compute the same over id, time and body, and refuse old times."""
    when = str(int(at.timestamp()))
    digest = hmac.new(_key(secret), f"{id}.{when}.".encode() + body, sha256).digest()
    return {
        "Content-Type": "application/json",
        "Webhook-Id": id,
        "Webhook-Timestamp": when,
        "Webhook-Signature": f"v1,{b64encode(digest).decode()}",
    }


def retry_delay(attempts: int, *, jitter: float) -> timedelta:
    """Return five seconds, doubled with every attempt up to six hours; up to half less, to spread retries."""
    seconds = min(5.0 * 2.0 ** min(attempts - 1, 20), _LONGEST_DELAY)
    return timedelta(seconds=seconds * (1 - jitter / 2))


def _key(secret: str) -> bytes:
    """Decode a secret in the specification's format, or use its text. A short one can be guessed from one message."""
    key = secret.encode()
    if secret.startswith(_ENCODED):
        with suppress(ValueError):
            key = b64decode(secret.removeprefix(_ENCODED), validate=True)
    if len(key) < _SHORTEST_SECRET:
        raise BackendError("invalid", f"its secret is shorter than {_SHORTEST_SECRET} bytes")
    return key
