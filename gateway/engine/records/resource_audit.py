"""Audit reads that are no calls: whole results, and prompts and resources of other servers.

The guard decides. A read leaves an audit entry and its taint in the state of the turn, but no record of a call.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.audit import Reason
from gateway.engine.call import DEFAULT_HOLD_POLICY, Call, HoldPolicy
from gateway.engine.gates.read_guard import make_read_call
from gateway.engine.live_revision import LiveRevision
from gateway.engine.observer import Observer
from gateway.engine.records.auditor import Auditor
from gateway.engine.turns.turn import Turn
from gateway.model import CallerChannel, Principal
from gateway.registries import DeclaredDefinition, Query
from gateway.storage import AuditBody, CallStore


class Remember(Protocol):
    async def __call__(self, turn: Turn, audit: Sequence[AuditBody] = ()) -> None: ...


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Who requests what (`prompt:NAME`, `resource:URI`), in which catalogue and under which revision."""

    principal: Principal
    catalogue: str
    what: str
    revision: str

    def to_call(
        self,
        args: Mapping[str, Any] | None = None,
        *,
        turn: Turn | None = None,
        client: CallerChannel | None = None,
        holding: HoldPolicy = DEFAULT_HOLD_POLICY,
    ) -> Call:
        return make_read_call(
            self.what,
            args or {},
            principal=self.principal,
            catalogue=self.catalogue,
            revision=self.revision,
            turn=turn,
            client=client,
            holding=holding,
        )


class ResourceAudit:
    def __init__(
        self,
        store: CallStore,
        auditor: Auditor | None,
        *,
        remember: Remember,
        write_down: Callable[[Call, Reason], Awaitable[None]],
        observer: Observer | None = None,
    ) -> None:
        self._observer = observer
        self._store = store
        self._auditor = auditor
        self._remember = remember
        self._write_down = write_down

    async def decide(self, published: LiveRevision, call: Call, target: Query | DeclaredDefinition) -> None:
        """Let the guard decide. Record a refusal and raise it."""
        if self._observer is not None:
            call.seen = self._observer.start_read(call)
        try:
            await published.guard.decide(call, target, call.args)
        except Exception as error:
            _end_observation(call, error)
            reason: Any = call.reason or "check-failed"  # the guard sets only words of the vocabulary
            await self._write_down(call, reason)
            raise

    async def record_read(self, call: Call, target: Query | DeclaredDefinition, *, into: Turn | None) -> None:
        """Write the audit entry and the turn state durably, before the content is sent."""
        audit = [] if self._auditor is None else [self._auditor.read_entry(call, target)]
        try:
            if into is not None:
                into.state.record_read(into.published.access.taint_of_tool(target))
                if into.remembers.is_stored:
                    await self._remember(into, audit)
                    return
            if audit:
                await self._store.note(audit)
        finally:
            _end_observation(call)

    async def record_refusal(self, request: ResourceRequest, reason: Reason) -> None:
        """Record a request for something that does not exist for this caller."""
        await self._write_down(request.to_call(), reason)


def _end_observation(call: Call, error: Exception | None = None) -> None:
    seen, call.seen = call.seen, None  # breaks a reference cycle
    if seen is not None:
        seen.end_read(error)
