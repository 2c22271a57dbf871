"""What is kept of prompts and resources of other servers that somebody had: an entry in the decision log, and what the
turn remembers. They are no calls, so there is no record of one."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.audit.words import Reason
from gateway.core.ids import new_id
from gateway.governance.principals import Principal
from gateway.governance.records import AuditBody, Store
from gateway.serving.auditing import Auditor
from gateway.serving.current import ServedCall
from gateway.serving.turns import Turn
from gateway.snapshot import Offer


class Remember(Protocol):
    async def __call__(self, turn: Turn, audit: Sequence[AuditBody] = ()) -> None: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asked for what, where, under which revision: `prompt:NAME`, `resource:URI`."""

    principal: Principal
    catalogue: str
    what: str
    revision: str

    def as_call(self, turn: Turn | None = None) -> ServedCall:
        return ServedCall(new_id(), self.what, {}, self.principal, self.catalogue, self.revision, turn=turn)


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

    async def told(self, asked: Asked, offer: Offer, *, into: Turn | None) -> None:
        """It is about to be told. That is durable before it is."""
        audit = [] if self._auditor is None else [self._auditor.had(asked.as_call(into), offer)]
        if into is not None:
            into.memory.reads(into.published.access.brought_with(offer))
            if into.remembers.is_stored:
                await self._remember(into, audit)
                return
        if audit:
            await self._store.note(audit)

    async def refused(self, asked: Asked, reason: Reason) -> None:
        """It is not there for whoever asked, or not at all."""
        await self._write_down(asked.as_call(), reason)
