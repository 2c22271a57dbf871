"""Whether a caller may see, call or read something of a revision; checked each time, as rights can be revoked."""

from collections.abc import Sequence

from gateway.engine.live_revision import LiveRevision
from gateway.engine.turns.turn import Turn
from gateway.errors import UnknownCall, UnknownCatalogue
from gateway.model import Principal, ToolCall, candidate_call_ids, now
from gateway.registries import CONTENT, DeclaredTool, Query
from gateway.storage import StoredCall


def require_audience(published: LiveRevision, principal: Principal, catalogue: str) -> None:
    """Raise `UnknownCatalogue` unless the caller is in the audience."""
    if not published.access.is_in_audience(principal, catalogue):
        raise UnknownCatalogue()


def may_know(published: LiveRevision, principal: Principal, catalogue: str, name: str, tool: DeclaredTool) -> bool:
    """Whether the caller may know of a tool. Unlike in lists, hidden tools are included: callers may use their name."""
    if not published.catalogues[catalogue].registry.has(name):
        return False
    if not tool.is_active and not tool.is_callable_on(now().date()):
        return False
    return published.access.decide_discovery(principal, catalogue, tool).allowed


def may_call(published: LiveRevision, principal: Principal, stored: StoredCall) -> bool:
    """Whether policy and stop list still let the caller make this call of theirs."""
    tool = published.snapshot.tools.get(stored.identity)
    return tool is not None and published.guard.permits(principal, stored.catalogue, tool)


def may_read(published: LiveRevision, principal: Principal, stored: StoredCall, *, by: str = CONTENT) -> bool:
    """Whether policy and stop list still let the caller read the result of their call, `by` a query tool or whole.

    A row for `read` decides; without one, permission to make the call does.
    """
    query = published.guard.of_stored(stored, by)
    if query is None or not published.access.is_in_audience(principal, stored.catalogue):
        return False
    return is_kept(published, stored) and published.guard.permits(principal, stored.catalogue, query)


def is_kept(published: LiveRevision, stored: StoredCall) -> bool:
    """Whether a call has a result that can be read and is still retained."""
    if stored.status != "settled" or stored.is_error or stored.from_artifact_tool:
        return False
    tool = published.snapshot.tools.get(stored.identity)
    return tool is not None and not _is_past_its_time(published, stored, tool)


def filter_readable(turn: Turn, records: Sequence[ToolCall]) -> list[ToolCall]:
    """Return the records that a turn may continue with; a query's result is readable if its artifact is."""

    sources = {record.id: record for record in records}

    def is_readable(record: ToolCall) -> bool:
        maker: str | None = record.tool
        if record.from_artifact_tool:
            id = str(record.args.get("callId"))
            known = (sources[each].tool for each in candidate_call_ids(id) if each in sources)
            maker = next(known, None) or turn.calls.find_tool(id)
        query = _query_of(turn, record.tool if record.from_artifact_tool else CONTENT, maker)
        return query is not None and turn.published.access.reads(turn.principal, turn.stored.catalogue, query).allowed

    return [record for record in records if record.is_error or is_readable(record)]


def queries_of(turn: Turn) -> list[Query]:
    """Return everything readable in a turn. Raise `UnknownCall` if the tool that made a part is unknown."""
    found: dict[tuple[str, str], Query] = {}
    for name, maker in turn.calls.readings:
        query = _query_of(turn, name or CONTENT, maker)
        if query is None:
            raise UnknownCall()
        found[query.name, query.maker.name] = query
    return [found[key] for key in sorted(found)]


def _query_of(turn: Turn, name: str, maker: str | None) -> Query | None:
    """Return the query of that name for results of a tool; `None` if the tool is not declared."""
    declared = None if maker is None else turn.published.tool(turn.stored.catalogue, maker)
    return None if declared is None else turn.published.snapshot.query(name, declared)


def _is_past_its_time(published: LiveRevision, stored: StoredCall, tool: DeclaredTool) -> bool:
    declared = published.types.get_declared(tool.artifact)
    retain = declared.retain if declared is not None else None
    return retain is not None and now() >= (stored.completed_at or stored.created_at) + retain
