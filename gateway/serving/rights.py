"""What a caller may still know, call and read of a revision. Rights are asked anew each time: some are taken away."""

from collections.abc import Sequence

from gateway.core.calls import ToolCall
from gateway.core.events import now
from gateway.errors import UnknownCall, UnknownCatalogue
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall
from gateway.serving.published import Published
from gateway.serving.read_guard import record_of
from gateway.serving.turns import Turn
from gateway.snapshot import CONTENT, DeclaredTool, Query


def admit(published: Published, principal: Principal, catalogue: str) -> None:
    """Raises `UnknownCatalogue` unless the caller is in the audience."""
    if not published.access.admits(principal, catalogue):
        raise UnknownCatalogue()


def may_know(turn: Turn, name: str, tool: DeclaredTool) -> bool:
    """The same that lists ask, but for hidden tools, which are there for those who know their name."""
    access, catalogue = turn.published.access, turn.stored.catalogue
    if not turn.catalogue.registry.has(name):
        return False
    if not tool.is_active and not tool.is_in_use(now().date()):
        return False
    return access.visibility(turn.principal, catalogue, tool).allowed


def may_call(published: Published, principal: Principal, stored: StoredCall) -> bool:
    """Whether policy and stop list let the caller still make a call of theirs."""
    tool = published.snapshot.tools.get(stored.identity)
    return tool is not None and published.guard.permits(principal, stored.catalogue, tool)


def may_read(published: Published, principal: Principal, stored: StoredCall, *, by: str = CONTENT) -> bool:
    """Whether policy and stop list let the caller still read what a call of theirs yielded, `by` a query tool or whole.

    A row about `read` decides; without one, whoever may still make the call may read its result.
    """
    query = published.guard.of_stored(stored, by)
    if query is None or not published.access.admits(principal, stored.catalogue):
        return False
    return is_kept(published, stored) and published.guard.permits(principal, stored.catalogue, query)


def is_kept(published: Published, stored: StoredCall) -> bool:
    """Whether a call has left something to read that is not past its time."""
    if stored.status != "settled" or stored.is_error or stored.from_artifact_tool:
        return False
    tool = published.snapshot.tools.get(stored.identity)
    return tool is not None and not _is_past_its_time(published, stored, tool)


def still_readable(turn: Turn, records: Sequence[ToolCall]) -> list[ToolCall]:
    """What a turn may go on with: answers of queries go where the artifact goes that they are about."""

    def is_readable(record: ToolCall) -> bool:
        query = _query_of(turn, records, record)
        return query is not None and turn.published.access.reads(turn.principal, turn.stored.catalogue, query).allowed

    return [record for record in records if record.is_error or is_readable(record)]


def queries_of(turn: Turn) -> list[Query]:
    """Everything that there is to read in a turn. Raises `UnknownCall` if nobody knows what made a part of it."""
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
    """What it is to read a record of a turn; `None` if the tool that made the result is not declared any more."""
    source: ToolCall | None = record
    if record.from_artifact_tool:
        source = record_of(records, str(record.args.get("callId")))
    maker = None if source is None else turn.published.tool(turn.stored.catalogue, source.tool)
    name = record.tool if record.from_artifact_tool else CONTENT
    return None if maker is None else turn.published.snapshot.query(name, maker)


def _is_past_its_time(published: Published, stored: StoredCall, tool: DeclaredTool) -> bool:
    declared = published.types.declared(tool.artifact)
    retain = declared.retain if declared is not None else None
    return retain is not None and now() >= (stored.completed_at or stored.created_at) + retain
