"""Guard reads: of results (by query tools or as a whole), and of prompts and resources of other servers.

Query tools use it inside their handler, before they look for the artifact. It applies the same checks as to calls:
policy, stop list, rules, approvals, limits.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from gateway.engine.call import DEFAULT_HOLD_POLICY, Call, HoldPolicy, get_current_call
from gateway.engine.gates.guard import CallGuard, GuardDependencies
from gateway.errors import NotPermitted, Refused, StoreUnavailable
from gateway.model import CallerChannel, Principal, exact_digest, fingerprint_of, new_id
from gateway.policy import Access
from gateway.registries import CONTENT, DeclaredDefinition, Query, Requested
from gateway.storage import StoredCall

if TYPE_CHECKING:
    from gateway.engine.turns.turn import Turn

_MOST_GATES: Final = 4096
"""Number of cached gates: one for each used combination of query tool, tool and catalogue."""


class ReadGuard:
    """One per revision."""

    def __init__(self, access: Access, controls: GuardDependencies) -> None:
        self._access = access
        self._controls = controls
        self._gates: dict[tuple[str, ...], CallGuard] = {}

    async def query(self, name: str, args: Mapping[str, Any]) -> None:
        """Raise unless the caller may read that artifact by that tool now. Every query tool does this first."""
        outer = get_current_call()
        turn = outer.turn
        assert turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        call = outer if outer.declared is None else _inner(outer, name, args)  # a tool may query its turn's results
        query = self._query_of(call, turn, name, str(args.get("callId")))
        if query is None:
            call.set_decision("deny", "not-permitted", "the tool that made it is no longer declared")
            raise NotPermitted()
        await self.decide(call, query, args)
        turn.state.record_read(self._access.taint_of_tool(query))
        call.course.has_begun = True

    async def decide(self, call: Call, target: Query | DeclaredDefinition, args: Mapping[str, Any]) -> None:
        """Raise unless the caller may read it now. The decision is set on the call."""
        await self._gate(call.catalogue, target).decide(call, args)

    def permits(self, principal: Principal, catalogue: str, target: Requested) -> bool:
        """Whether policy and stop list allow it now. Nothing is counted, and no rule is evaluated."""
        call = Call("", target.name, {}, principal, catalogue, self._access.snapshot.revision)
        try:
            self._gate(catalogue, target).authorize(call)
        except (Refused, StoreUnavailable):
            return False
        return True

    def of_stored(self, stored: StoredCall, name: str = CONTENT) -> Query | None:
        """Return the query that reads the result of a call; `None` if its tool is no longer declared."""
        maker = self._access.snapshot.tools.get(stored.identity)
        artifact = next((piece.type for piece in stored.results if piece.kind == "artifact"), None)
        return None if maker is None else self._access.snapshot.query(name, maker, artifact)

    def _query_of(self, call: Call, turn: "Turn", name: str, id: str) -> Query | None:
        if call.target is not None:
            return self.of_stored(call.target, name)
        record = turn.calls.find_source(id)
        maker = None if record is None else turn.published.tool(turn.stored.catalogue, record.tool)
        return None if maker is None else self._access.snapshot.query(name, maker)

    def _gate(self, catalogue: str, target: Requested) -> CallGuard:
        of = (target.maker.name, target.artifact) if isinstance(target, Query) else ("", "")
        key = (catalogue, target.object, *of)
        gate = self._gates.get(key)
        if gate is None:
            definition = exact_digest([target.object, *of, target.trust.tier.name])
            if len(self._gates) >= _MOST_GATES:
                self._gates.clear()
            gate = self._gates[key] = CallGuard.of(target, catalogue, self._access, self._controls, definition)
        return gate


def make_read_call(
    what: str,
    args: Mapping[str, Any],
    *,
    principal: Principal,
    catalogue: str,
    revision: str,
    turn: "Turn | None" = None,
    client: CallerChannel | None = None,
    holding: HoldPolicy = DEFAULT_HOLD_POLICY,
) -> Call:
    """Return a call object for a request that is not a call of a tool, for the gate and the audit log."""
    copied = dict(args)
    exact = fingerprint_of(what, copied)
    return Call(
        new_id(), what, copied, principal, catalogue, revision, turn=turn, client=client, holding=holding, exact=exact
    )


def _inner(outer: Call, name: str, args: Mapping[str, Any]) -> Call:
    """Return the call object of a query that the handler of another tool makes, for the same caller."""
    return make_read_call(
        name,
        args,
        principal=outer.principal,
        catalogue=outer.catalogue,
        revision=outer.revision,
        turn=outer.turn,
        client=outer.client,
    )
