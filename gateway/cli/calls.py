"""`gateway calls`: the records of a project's calls, straight from its store, also while a gateway runs on it.

Arguments are shown when they are asked for, results never: their bytes are their callers' business.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import typer

from gateway.assembly import Assembled
from gateway.cli.console import fail, note, out, print_json, print_pairs, print_table
from gateway.cli.moments import moment, shown_moment
from gateway.cli.project import (
    DEFAULT_FOLDER,
    Environment,
    Policies,
    ProjectFolder,
    assembled,
    project_at,
    secrets_of,
    sound,
)
from gateway.errors import GatewayError
from gateway.governance.records import CallFilter, StoredCall, argument_data
from gateway.runtime.looking import project_call, project_calls

T = TypeVar("T")

_COLUMNS: Final = ("when", "tool", "outcome", "decision", "subject", "tenant", "catalogue", "took", "call")
_COLOURS: Final = {"unknown": "bold red", "error": "yellow", "started": "cyan", "ok": "green", "deny": "yellow"}

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Show the records of calls.")


Since = Annotated[
    datetime | None,
    typer.Option(parser=moment, metavar="AGE|MOMENT", help="Only calls since then: 15m, 2h, 3d.", show_default=False),
]
Output = Annotated[Literal["text", "json"], typer.Option(help="For people, or for programs.")]
Arguments = Annotated[bool, typer.Option("--arguments", help="Show what was asked, too; it may be private.")]


@app.command("list")
def list_calls(
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    tool: Annotated[str | None, typer.Option(help="Only calls of this tool, by the name it was called by.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only calls of this subject: user:ana.")] = None,
    status: Annotated[
        Literal["started", "settled", "unknown"] | None, typer.Option(help="Only calls in this state.")
    ] = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most, newest first.")] = 50,
    arguments: Arguments = False,
    output: Output = "text",
) -> None:
    """List calls, newest first. An outcome of unknown means that a process ended while the call ran.

    Exit codes: 0 listed, 1 the configuration has errors or its store cannot be read, 2 wrong use.
    """
    found = _found(folder, policies, environment)
    wanted = CallFilter(subject=subject, tool=tool, status=status)
    calls = _read(lambda: project_calls(found, secrets_of(folder, policies), wanted, since=since, limit=limit))
    if output == "json":
        print_json([_data(call, arguments) for call in calls])
        return
    if not calls:
        note("no calls fit")
        return
    columns = (*_COLUMNS, "arguments") if arguments else _COLUMNS
    print_table(out(), columns, [_row(call, arguments) for call in calls], colours=_COLOURS)


@app.command("show")
def show_call(
    id: Annotated[str, typer.Argument(help="The call's id.")],
    turn: Annotated[
        str | None, typer.Option(help="Its turn, if several have a call of that id.", show_default=False)
    ] = None,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    arguments: Arguments = False,
    output: Output = "text",
) -> None:
    """Show one call: who made it, what was decided and why, how it ended, what it yielded.

    Exit codes: 0 shown, 1 there is no such call or its store cannot be read, 2 wrong use.
    """
    found = _found(folder, policies, environment)
    call = _read(lambda: project_call(found, secrets_of(folder, policies), id, turn_id=turn))
    if call is None:
        fail(f"there is no call {id!r}", "gateway calls list shows which ones there are", code=1)
    data = _data(call, arguments)
    if output == "json":
        print_json(data)
        return
    print_pairs(out(), [(name, _words(value)) for name, value in data.items() if value not in (None, [], "")])


def _found(folder: Any, policies: Any, environment: str | None) -> Assembled:
    project = project_at(folder, policies)
    return sound(assembled(project, environment=environment, today=None), project)


def _read(reading: Callable[[], T]) -> T:
    try:
        return reading()
    except GatewayError as error:
        fail(error.message, error.help, code=1)


def _outcome(call: StoredCall) -> str:
    if call.status != "settled":
        return call.status
    return "error" if call.is_error else "ok"


def _row(call: StoredCall, with_arguments: bool) -> list[str]:
    row = [
        shown_moment(call.created_at),
        call.tool,
        _outcome(call),
        call.decision or "",
        call.principal.subject,
        call.principal.tenant or "",
        call.catalogue,
        _took(call),
        call.id,
    ]
    shown = _json(call.args) if call.excerpt is None else call.excerpt.text
    return [*row, shown] if with_arguments else row


def _data(call: StoredCall, with_arguments: bool) -> dict[str, Any]:
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
        "startedAt": shown_moment(call.created_at),
        "completedAt": None if call.completed_at is None else shown_moment(call.completed_at),
        "checksum": call.checksum,
        "revision": call.revision,
        "idempotencyKey": call.idempotency_key,
        "results": [{"kind": each.kind, "type": each.type, "byteLength": each.byte_length} for each in call.results],
    }
    return {**data, **argument_data(call)} if with_arguments else data


def _took(call: StoredCall) -> str:
    if call.completed_at is None or call.status != "settled":
        return ""
    return f"{(call.completed_at - call.created_at).total_seconds() * 1000:.0f} ms"


def _words(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)
