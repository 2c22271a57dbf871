"""The guard in front of everything that is read: results, by query tools or whole, prompts and resources of others.

Query tools ask it inside their handler, before they look for the artifact. It uses the same gate as calls of tools:
policy, stop list, rules, people, limits.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gateway.access import Access
from gateway.core.artifacts import calls_named_by
from gateway.core.calls import ToolCall
from gateway.core.exact_json import exact_digest, fingerprint_of
from gateway.core.ids import new_id
from gateway.errors import NotPermitted, Refused, StoreUnavailable
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall
from gateway.serving.current import ORDINARY, Client, Holding, ServedCall, current_call
from gateway.serving.gating import Controls, Gate
from gateway.snapshot import CONTENT, Offer, Query, Requested

if TYPE_CHECKING:
    from gateway.serving.turns import Turn

_MOST_GATES: Final = 4096
"""Gates that are remembered: one for each query tool, tool and catalogue that somebody used."""


class ReadGuard:
    """One per revision."""

    def __init__(self, access: Access, controls: Controls) -> None:
        self._access = access
        self._controls = controls
        self._gates: dict[tuple[str, ...], Gate] = {}

    async def query(self, name: str, args: Mapping[str, Any]) -> None:
        """What every query tool does first. Raises unless its caller may read that artifact by that tool now."""
        outer = current_call()
        turn = outer.turn
        assert turn is not None, "a served call has its turn"  # noqa: S101 - set where calls are made
        call = outer if outer.declared is None else _inner(outer, name, args)  # a tool may query what its turn has
        query = self._query_of(call, turn, name, str(args.get("callId")))
        if query is None:
            call.decide("deny", "not-permitted", "the tool that made it is not declared any more")
            raise NotPermitted()
        await self.decide(call, query, args)
        turn.memory.reads(self._access.brings(query))
        call.course.has_begun = True

    async def decide(self, call: ServedCall, asked: Query | Offer, args: Mapping[str, Any]) -> None:
        """Raises unless the caller may read it now. The call says what was decided."""
        await self._gate(call.catalogue, asked).decide(call, args)

    def permits(self, principal: Principal, catalogue: str, asked: Requested) -> bool:
        """Whether policy and stop list let the caller have it now. Nothing is counted, and no rule is asked."""
        call = ServedCall("", asked.name, {}, principal, catalogue, self._access.snapshot.revision)
        try:
            self._gate(catalogue, asked).authorise(call)
        except (Refused, StoreUnavailable):
            return False
        return True

    def of_stored(self, stored: StoredCall, name: str = CONTENT) -> Query | None:
        """Reading what a call yielded; `None` if its tool is not declared any more."""
        maker = self._access.snapshot.tools.get(stored.identity)
        kept = next((piece.type for piece in stored.results if piece.kind == "artifact"), None)
        return None if maker is None else self._access.snapshot.query(name, maker, kept)

    def _query_of(self, call: ServedCall, turn: "Turn", name: str, id: str) -> Query | None:
        if call.target is not None:
            return self.of_stored(call.target, name)
        record = record_of(turn.ctx.turn_tool_calls, id)
        maker = None if record is None else turn.published.tool(turn.stored.catalogue, record.tool)
        return None if maker is None else self._access.snapshot.query(name, maker)

    def _gate(self, catalogue: str, asked: Requested) -> Gate:
        of = (asked.maker.name, asked.artifact) if isinstance(asked, Query) else ("", "")
        key = (catalogue, asked.object, *of)
        gate = self._gates.get(key)
        if gate is None:
            definition = exact_digest([asked.object, *of, asked.trust.tier.name])
            if len(self._gates) >= _MOST_GATES:
                self._gates.clear()
            gate = self._gates[key] = Gate.of(asked, catalogue, self._access, self._controls, definition)
        return gate


def reading(
    what: str,
    args: Mapping[str, Any],
    *,
    principal: Principal,
    catalogue: str,
    revision: str,
    turn: "Turn | None" = None,
    client: Client | None = None,
    holding: Holding = ORDINARY,
) -> ServedCall:
    """A request that is no call of a tool, for the gate and for the decision log."""
    given = dict(args)
    call = ServedCall(new_id(), what, given, principal, catalogue, revision, turn=turn, client=client, holding=holding)
    call.exact = fingerprint_of(what, given)
    return call


def record_of(records: Sequence[ToolCall], id: str) -> ToolCall | None:
    """The record whose result has that id: its own id, or that of one of its pieces."""
    by_id = {record.id: record for record in records}
    return next((by_id[each] for each in calls_named_by(id) if each in by_id), None)


def _inner(outer: ServedCall, name: str, args: Mapping[str, Any]) -> ServedCall:
    """A query that the handler of another tool makes, for the same caller."""
    return reading(
        name,
        args,
        principal=outer.principal,
        catalogue=outer.catalogue,
        revision=outer.revision,
        turn=outer.turn,
        client=outer.client,
    )
