"""`gateway calls`: the records of a project's calls, read from its store, also while a gateway runs on it.

Arguments are shown only with `--arguments`, results never: they are private to the caller.
"""

import json
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

import typer

from gateway.app import LoadedProject, find_project_call, list_project_calls
from gateway.cli.options import (
    DEFAULT_FOLDER,
    CallIdArgument,
    EnvironmentOption,
    OutputOption,
    PoliciesOption,
    ProjectOption,
    SinceOption,
    TurnOption,
)
from gateway.cli.output import fail, format_time, print_json, print_note, print_pairs, print_table, stdout
from gateway.cli.project_loader import find_project, load_with_environ, project_secrets, require_valid
from gateway.errors import GatewayError
from gateway.storage import CallFilter, StoredCall, argument_data

T = TypeVar("T")

_TRACE: Final = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")

_COLUMNS: Final = ("when", "tool", "outcome", "decision", "subject", "tenant", "catalogue", "took", "call")
_COLOURS: Final = {"unknown": "bold red", "error": "yellow", "started": "cyan", "ok": "green", "deny": "yellow"}

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show the records of calls.")


Arguments = Annotated[bool, typer.Option("--arguments", help="Show the arguments, too; they may be private.")]


@app.command("list")
def list_calls(
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool, by the name that the caller used.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only calls of this subject: user:ana.")] = None,
    status: Annotated[
        Literal["started", "settled", "unknown"] | None, typer.Option(help="Only calls in this state.")
    ] = None,
    decision: Annotated[
        Literal["allow", "hold", "deny"] | None, typer.Option(help="Only calls with this decision.")
    ] = None,
    rule: Annotated[
        str | None, typer.Option(help="Only calls that this rule or row decided: part of a name, or of FILE:LINE.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(help="Only calls of this trace: its id, or a traceparent header.")
    ] = None,
    since: SinceOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most, newest first.")] = 50,
    arguments: Arguments = False,
    output: OutputOption = "text",
) -> None:
    """List calls, newest first. An outcome of unknown means that a process ended while the call ran.

    Exit codes: 0 listed, 1 the configuration has errors or its store cannot be read, 2 wrong use.
    """
    found = _load_project(folder, policies, environment)
    trace_id = None if trace is None else _parse_trace(trace)
    wanted = CallFilter(subject=subject, tool=tool, status=status, decision=decision, rule=rule, trace_id=trace_id)
    calls = _read_or_fail(
        lambda: list_project_calls(found, project_secrets(folder, policies), wanted, since=since, limit=limit)
    )
    if output == "json":
        print_json([_to_data(call, arguments) for call in calls])
        return
    if not calls:
        print_note("no call matches")
        return
    columns = (*_COLUMNS, "arguments") if arguments else _COLUMNS
    print_table(stdout(), columns, [_to_row(call, arguments) for call in calls], colours=_COLOURS)


@app.command("show")
def show_call(
    id: CallIdArgument,
    turn: TurnOption = None,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    arguments: Arguments = False,
    output: OutputOption = "text",
) -> None:
    """Show one call: its caller, the decision and its reason, the outcome, and the kinds of results.

    Exit codes: 0 shown, 1 there is no such call or its store cannot be read, 2 wrong use.
    """
    found = _load_project(folder, policies, environment)
    call = _read_or_fail(lambda: find_project_call(found, project_secrets(folder, policies), id, turn_id=turn))
    if call is None:
        fail(f"there is no call {id!r}", "gateway calls list shows the calls", code=1)
    data = _to_data(call, arguments)
    if output == "json":
        print_json(data)
        return
    print_pairs(stdout(), [(name, _to_text(value)) for name, value in data.items() if value not in (None, [], "")])


def _parse_trace(text: str) -> str:
    """Return the id of a trace, given as such or as a traceparent header."""
    found = _TRACE.fullmatch(text.strip().lower())
    if found is None:
        fail(f"{text!r} is no trace", "write the 32 hexadecimal digits of its id, or a traceparent", code=2)
    return found[1]


def _load_project(folder: Any, policies: Any, environment: str | None) -> LoadedProject:
    project = find_project(folder, policies)
    return require_valid(load_with_environ(project, environment=environment, today=None), project)


def _read_or_fail(read: Callable[[], T]) -> T:
    try:
        return read()
    except GatewayError as error:
        fail(error.message, error.help, code=1)


def _outcome(call: StoredCall) -> str:
    if call.status != "settled":
        return call.status
    return "error" if call.is_error else "ok"


def _to_row(call: StoredCall, with_arguments: bool) -> list[str]:
    row = [
        format_time(call.created_at),
        call.tool,
        _outcome(call),
        call.decision or "",
        call.principal.subject,
        call.principal.tenant or "",
        call.catalogue,
        _format_duration(call),
        call.id,
    ]
    shown = _to_json(call.args) if call.excerpt is None else call.excerpt.text
    return [*row, shown] if with_arguments else row


def _to_data(call: StoredCall, with_arguments: bool) -> dict[str, Any]:
    data: dict[str, Any] = {
        "callId": call.id,
        "turn": call.turn_id,
        "tool": call.tool,
        "identity": call.identity,
        "catalogue": call.catalogue,
        "subject": call.principal.subject,
        "tenant": call.principal.tenant,
        "roles": sorted(call.principal.roles),
        "status": call.status,
        "isError": call.is_error,
        "decision": call.decision,
        "because": call.because,
        "startedAt": format_time(call.created_at),
        "completedAt": None if call.completed_at is None else format_time(call.completed_at),
        "checksum": call.checksum,
        "revision": call.revision,
        "idempotencyKey": call.idempotency_key,
        "results": [{"kind": each.kind, "type": each.type, "byteLength": each.byte_length} for each in call.results],
    }
    return {**data, **argument_data(call)} if with_arguments else data


def _format_duration(call: StoredCall) -> str:
    if call.completed_at is None or call.status != "settled":
        return ""
    return f"{(call.completed_at - call.created_at).total_seconds() * 1000:.0f} ms"


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else _to_json(value)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)
