"""Telling other systems of approvals: signed, and again and again until they say that they know.

Notices wait in the store beside the approvals they are about, so a crash loses none and every process may send them;
each is leased to one. A notice may still arrive twice: its id stays the same. It carries names and a link, never an
argument. Signatures are those of the Standard Webhooks specification, which receivers have libraries for.
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

import aiohttp
from yarl import URL

from gateway.approvals.showing import plain
from gateway.backends.addresses import Network
from gateway.backends.connections import Connections, told
from gateway.backends.urls import parsed
from gateway.core.events import now
from gateway.errors import GatewayError, ProgramError
from gateway.governance.approvals import APPROVAL_EVENTS, ApprovalEvent, ApprovalRecord, ApprovalStore, Notice
from gateway.governance.ports import BackendFailed

MOST_ATTEMPTS: Final = 15
"""About a day, with the delays between them."""

_LEASE: Final = timedelta(minutes=1)
_ANSWER_SECONDS: Final = 15.0
_LONGEST_DELAY: Final = 6 * 3600.0
_ENCODED: Final = "whsec_"
_SHORTEST_SECRET: Final = 16

_log: Final = logging.getLogger(__name__)


class InvalidWebhook(ProgramError):
    code = "E_INVALID_WEBHOOK"
    default_message = "the webhook is invalid"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where to tell of which events. `secret` is read anew for each attempt, so that it can be rotated.

    Names that lead inside one's own network are refused, but for a host that the URL names as an address or as
    localhost, and for `networks`.
    """

    name: str
    url: str
    secret: Callable[[], str] = field(repr=False)
    events: frozenset[ApprovalEvent] = frozenset(APPROVAL_EVENTS)
    networks: tuple[Network, ...] = ()

    def __post_init__(self) -> None:
        try:
            template = parsed(self.url)
        except GatewayError as error:
            raise InvalidWebhook(f"webhook {self.name}: {error.message}", help=error.help) from error
        if template.names:
            raise InvalidWebhook(f"webhook {self.name}: the URL has a placeholder", help="write the URL out")


def subscribers(webhooks: Sequence[Webhook]) -> dict[ApprovalEvent, list[str]]:
    """Who is told of what, as `Approvals` takes it."""
    return {event: [each.name for each in webhooks if event in each.events] for event in APPROVAL_EVENTS}


class Messenger:
    """Sends what waits. `base_url` is where people reach this gateway."""

    def __init__(
        self,
        store: ApprovalStore,
        webhooks: Sequence[Webhook],
        *,
        connections: Connections,
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
        """Why webhooks could not be told when they were last tried, by name; those that could are not there."""
        return self._problems

    async def run(self, *, every: float = 1.0) -> None:
        """Send until cancelled. Nothing that goes wrong ends it."""
        while True:
            try:
                await self.send_due()
            except GatewayError as error:
                _log.warning("notices of approvals cannot be read at present: %s", error.message)
            await asyncio.sleep(every)

    async def send_due(self) -> int:
        """Send what is due now; how many arrived. Webhooks do not wait for each other."""
        return sum(await asyncio.gather(*map(self._send_to, self._webhooks)))

    async def _send_to(self, webhook: Webhook) -> int:
        sent = 0
        while leased := await self._leased(webhook):
            [(notice, approval)] = leased
            failure = await self._attempt(webhook, notice, approval)
            if failure is not None:  # the others would fare no better now
                await self._failed(webhook, notice, failure)
                break
            self._problems.pop(webhook.name, None)
            await self._store.drop_notice(notice.id)
            sent += 1
        return sent

    async def _leased(self, webhook: Webhook) -> list[tuple[Notice, ApprovalRecord]]:
        at = self._clock()
        return await self._store.lease_notices(webhook.name, at=at, until=at + _LEASE, limit=1)

    async def _attempt(self, webhook: Webhook, notice: Notice, approval: ApprovalRecord) -> str | None:
        """`None` if the receiver has it, else why not."""
        body = json.dumps(self._message(notice, approval), separators=(",", ":")).encode()
        try:
            headers = signed(body, notice.id, secret=webhook.secret(), at=self._clock())
            async with asyncio.timeout(_ANSWER_SECONDS):
                status = await self._post(webhook, body, headers)
        except GatewayError as error:
            return error.message
        except (aiohttp.ClientError, OSError) as error:
            return told(error).message
        return None if 200 <= status < 300 else f"it answered {status}"

    async def _post(self, webhook: Webhook, body: bytes, headers: dict[str, str]) -> int:
        template = parsed(webhook.url)
        url = URL(f"{template.origin}{template.target({}, query=())}", encoded=True)
        session = self._connections.session(template.origin, webhook.networks)
        # A redirect would lead where nobody looked; what the receiver says besides its status is not read.
        async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
            return response.status

    async def _failed(self, webhook: Webhook, notice: Notice, failure: str) -> None:
        self._problems[webhook.name] = failure
        if notice.attempts >= MOST_ATTEMPTS:
            _log.error("webhook %s was not told of approval %s: %s", webhook.name, notice.approval_id, failure)
            await self._store.drop_notice(notice.id)
            return
        delay = delay_after(notice.attempts, jitter=self._jitter())
        _log.warning("webhook %s cannot be told at present: %s", webhook.name, failure)
        await self._store.delay_notice(notice.id, until=self._clock() + delay)

    def _message(self, notice: Notice, approval: ApprovalRecord) -> dict[str, Any]:
        request, action = approval.request, approval.request.action
        return {
            "id": notice.id,
            "type": f"approval.{notice.event}",
            "timestamp": notice.at.isoformat(),
            "data": {
                "approval": approval.id,
                "state": notice.state,
                "tool": plain(request.advertised),
                "catalogue": action.catalogue,
                "rule": request.rule,
                "reason": request.reason,
                "requester": plain(action.principal.subject),
                "tenant": action.principal.tenant,
                "approvers": list(request.approvers),
                "needed": request.needed,
                "expiresAt": approval.expires_at.isoformat(),
                "href": f"{self._base_url}/v1/approvals/{quote(approval.id, safe='')}",
            },
        }


def signed(body: bytes, id: str, *, secret: str, at: datetime) -> dict[str, str]:
    """The headers of a message. Receivers compute the same over id, time and body, and refuse old times."""
    when = str(int(at.timestamp()))
    digest = hmac.new(_key(secret), f"{id}.{when}.".encode() + body, sha256).digest()
    return {
        "Content-Type": "application/json",
        "Webhook-Id": id,
        "Webhook-Timestamp": when,
        "Webhook-Signature": f"v1,{b64encode(digest).decode()}",
    }


def delay_after(attempts: int, *, jitter: float) -> timedelta:
    """Five seconds, doubled with every attempt up to six hours; up to half less, so that not all come at once."""
    seconds = min(5.0 * 2.0 ** min(attempts - 1, 20), _LONGEST_DELAY)
    return timedelta(seconds=seconds * (1 - jitter / 2))


def _key(secret: str) -> bytes:
    """As the specification writes secrets, or the text as it is. A short one can be guessed from one message."""
    key = secret.encode()
    if secret.startswith(_ENCODED):
        with suppress(ValueError):
            key = b64decode(secret.removeprefix(_ENCODED), validate=True)
    if len(key) < _SHORTEST_SECRET:
        raise BackendFailed("invalid", f"its secret is shorter than {_SHORTEST_SECRET} bytes")
    return key
