"""What is read without a call: results as a whole, prompts and resources of other servers.

The guard decides; what is kept of it is an entry in the decision log, and what the turn remembers. There is no record
of a call."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.audit.words import Reason
from gateway.governance.principals import Principal
from gateway.governance.records import AuditBody, Store
from gateway.serving.auditing import Auditor
from gateway.serving.current import ORDINARY, Client, Holding, ServedCall
from gateway.serving.published import Published
from gateway.serving.read_guard import reading
from gateway.serving.turns import Turn
from gateway.snapshot import Offer, Query


class Remember(Protocol):
    async def __call__(self, turn: Turn, audit: Sequence[AuditBody] = ()) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asked for what, where, under which revision: `prompt:NAME`, `resource:URI`."""

    principal: Principal
    catalogue: str
    what: str
    revision: str

    def as_call(
        self,
        args: Mapping[str, Any] | None = None,
        *,
        turn: Turn | None = None,
        client: Client | None = None,
        holding: Holding = ORDINARY,
    ) -> ServedCall:
        return reading(
            self.what,
            args or {},
            principal=self.principal,
            catalogue=self.catalogue,
            revision=self.revision,
            turn=turn,
            client=client,
            holding=holding,
        )


class Having:
    def __init__(
        self,
        store: Store,
        auditor: Auditor | None,
        *,
        remember: Remember,
        write_down: Callable[[ServedCall, Reason], Awaitable[None]],
    ) -> None:
        self._store = store
        self._auditor = auditor
        self._remember = remember
        self._write_down = write_down

    async def decide(self, published: Published, call: ServedCall, asked: Query | Offer) -> None:
        """Have the guard decide. Raises for what is refused, which is written down first."""
        try:
            await published.guard.decide(call, asked, call.args)
        except Exception:
            reason: Any = call.reason or "check-failed"  # only such words are given
            await self._write_down(call, reason)
            raise

    async def told(self, call: ServedCall, asked: Query | Offer, *, into: Turn | None) -> None:
        """What was decided about is about to be told. That is durable before it is."""
        audit = [] if self._auditor is None else [self._auditor.had(call, asked)]
        if into is not None:
            into.memory.reads(into.published.access.brings(asked))
            if into.remembers.is_stored:
                await self._remember(into, audit)
                return
        if audit:
            await self._store.note(audit)

    async def refused(self, asked: Asked, reason: Reason) -> None:
        """It is not there for whoever asked, or not at all."""
        await self._write_down(asked.as_call(), reason)
