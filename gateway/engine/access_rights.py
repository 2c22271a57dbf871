"""What a caller may still know, call and read of a revision. Rights are checked each time, because some are revoked."""

from collections.abc import Sequence

from gateway.engine.gates.read_guard import record_of
from gateway.engine.live_revision import LiveRevision
from gateway.engine.turns.turn import Turn
from gateway.errors import UnknownCall, UnknownCatalogue
from gateway.model import Principal, ToolCall, now
from gateway.registries import CONTENT, DeclaredTool, Query
from gateway.storage import StoredCall


def require_audience(published: LiveRevision, principal: Principal, catalogue: str) -> None:
    """Raise `UnknownCatalogue` unless the caller is in the audience."""
    if not published.access.is_in_audience(principal, catalogue):
        raise UnknownCatalogue()


def may_know(turn: Turn, name: str, tool: DeclaredTool) -> bool:
    """Whether the caller may know of a tool. Unlike in lists, hidden tools are included: callers may use their name."""
    access, catalogue = turn.published.access, turn.stored.catalogue
    if not turn.catalogue.registry.has(name):
        return False
    if not tool.is_active and not tool.is_callable_on(now().date()):
        return False
    return access.decide_discovery(turn.principal, catalogue, tool).allowed


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

    def is_readable(record: ToolCall) -> bool:
        query = _query_of(turn, records, record)
        return query is not None and turn.published.access.reads(turn.principal, turn.stored.catalogue, query).allowed

    return [record for record in records if record.is_error or is_readable(record)]


def queries_of(turn: Turn) -> list[Query]:
    """Return everything readable in a turn. Raise `UnknownCall` if the tool that made a part is unknown."""
    records = turn.ctx.turn_tool_calls
    found: dict[tuple[str, str], Query] = {}
    for record in records:
        if not record.is_error:
            query = _query_of(turn, records, record)
            if query is None:
                raise UnknownCall()
            found[query.name, query.maker.name] = query
    return list(found.values())


def _query_of(turn: Turn, records: Sequence[ToolCall], record: ToolCall) -> Query | None:
    """Return the query that reads a record of a turn; `None` if the tool that made the result is undeclared."""
    source: ToolCall | None = record
    if record.from_artifact_tool:
        source = record_of(records, str(record.args.get("callId")))
    maker = None if source is None else turn.published.tool(turn.stored.catalogue, source.tool)
    name = record.tool if record.from_artifact_tool else CONTENT
    return None if maker is None else turn.published.snapshot.query(name, maker)


def _is_past_its_time(published: LiveRevision, stored: StoredCall, tool: DeclaredTool) -> bool:
    declared = published.types.get_declared(tool.artifact)
    retain = declared.retain if declared is not None else None
    return retain is not None and now() >= (stored.completed_at or stored.created_at) + retain
