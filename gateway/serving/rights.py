"""What a caller may still know, call and read of a revision. Rights are asked anew each time: some are taken away."""

from collections.abc import Sequence

from gateway.core.calls import ToolCall
from gateway.core.events import now
from gateway.errors import UnknownCatalogue
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall
from gateway.serving.published import Published
from gateway.serving.turns import Turn
from gateway.snapshot import DeclaredTool


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
    """Whether the caller may still make a call of theirs."""
    tool = published.snapshot.tools.get(stored.identity)
    return tool is not None and _may_invoke(published, principal, stored.catalogue, tool)


def may_read(published: Published, principal: Principal, stored: StoredCall) -> bool:
    """Whether the caller may still read what a call of theirs yielded.

    A row about `read` decides; without one, whoever may still make the call may read its result.
    """
    tool = published.snapshot.tools.get(stored.identity)
    if tool is None or not published.access.admits(principal, stored.catalogue):
        return False
    if _is_past_its_time(published, stored, tool):
        return False
    return _may_read(published, principal, stored.catalogue, tool)


def still_readable(turn: Turn, records: Sequence[ToolCall]) -> list[ToolCall]:
    """What a turn may go on with: answers of queries go where the artifact goes that they are about."""
    made_by = {record.id: record.tool for record in records if not record.from_artifact_tool}

    def is_readable(record: ToolCall) -> bool:
        name = made_by.get(str(record.args.get("callId")), "") if record.from_artifact_tool else record.tool
        tool = turn.published.tool(turn.stored.catalogue, name)
        return tool is not None and _may_read(turn.published, turn.principal, turn.stored.catalogue, tool)

    return [record for record in records if record.is_error or is_readable(record)]


def _may_invoke(published: Published, principal: Principal, catalogue: str, tool: DeclaredTool) -> bool:
    return published.access.asks(principal, "invoke", catalogue=catalogue, tool=tool).allowed


def _may_read(published: Published, principal: Principal, catalogue: str, tool: DeclaredTool) -> bool:
    reading = published.access.asks(principal, "read", catalogue=catalogue, tool=tool)
    if reading.allowed or reading.row is not None:
        return reading.allowed
    return _may_invoke(published, principal, catalogue, tool)


def _is_past_its_time(published: Published, stored: StoredCall, tool: DeclaredTool) -> bool:
    declared = published.types.declared(tool.artifact)
    retain = declared.retain if declared is not None else None
    return retain is not None and now() >= (stored.completed_at or stored.created_at) + retain
