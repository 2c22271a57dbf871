"""`gateway grant`: request a role for a short time, decide about requests, list grants, and revoke them.

Requests and decisions are made as the subject of the token, by a running gateway. Listing and revoking work on the
store itself, whether or not a gateway runs on it.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer
from typer.core import TyperGroup

from gateway.cli.client import GatewayRefusal, connect
from gateway.cli.options import (
    DEFAULT_FOLDER,
    DEFAULT_URL,
    DatabaseOption,
    EnvironmentOption,
    InsecureOption,
    OperatorOption,
    OutputOrFormatOption,
    PoliciesOption,
    ProjectOption,
    ReasonOption,
    TokenFileOption,
    UrlOption,
    parse_duration,
)
from gateway.cli.output import fail, print_json, print_line, print_note, print_table, stdout
from gateway.cli.stop_list_access import find_store, operator_name, use_grants
from gateway.policy import forward_now

_COLUMNS: Final = ("id", "status", "subject", "role", "policy", "since", "until", "requester", "decidedBy", "reason")
_COLOURS: Final = {"in-force": "green", "pending": "cyan", "revoked": "yellow", "refused": "yellow"}
_REQUEST: Final = "request"


class _RequestGroup(TyperGroup):
    """Group that reads a subject as a request: `gateway grant user:kim role:oncall --for 2h --reason INC-42`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_request = bool(args) and ":" in args[0]
        return super().parse_args(ctx, [_REQUEST, *args] if is_request else args)


app = typer.Typer(
    cls=_RequestGroup,
    add_completion=False,
    no_args_is_help=True,
    subcommand_metavar="SUBJECT ROLE ... | list | approve ID | refuse ID | revoke ID",
    help="Request a role for a short time, decide about requests, and revoke grants.",
    epilog='gateway grant user:kim role:oncall --for 2h --reason "INC-42"',
)

GrantArgument = Annotated[str, typer.Argument(metavar="ID", help="The grant's id.")]
TimeOption = Annotated[
    timedelta,
    typer.Option("--for", parser=parse_duration, metavar="TIME", help="How long: 15m, 2h; at most a week."),
]


@app.command(_REQUEST)
def request(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Who gets the role: user:NAME.")],
    role: Annotated[str, typer.Argument(metavar="ROLE", help="The role: role:NAME.")],
    *,
    period: TimeOption,
    reason: ReasonOption,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOrFormatOption = "text",
) -> None:
    """Request a role, as far as a GrantPolicy allows it. It is in force once an approver approves.

    Exit codes: 0 requested, 1 the gateway cannot be reached or refuses, 2 wrong use.
    """
    remote = connect(url, token_file, insecure=insecure)
    body = {"subject": subject, "role": role, "seconds": int(period.total_seconds()), "reason": reason}
    _print_grant(_ask(lambda: remote.post("/v1/grants", body)), output)


@app.command("list")
def list_grants(
    every: Annotated[bool, typer.Option("--all", help="Include those that are over.")] = False,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    database: DatabaseOption = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """List the pending requests and the grants in force, newest first.

    Exit codes: 0 listed, 1 the store cannot be read, 2 wrong use.
    """
    store = find_store(folder, policies, environment=environment, database=database)
    at = forward_now()
    found = [dict(each.to_dict(at)) for each in use_grants(store, lambda grants: grants.list_grants())]
    shown = found if every else [each for each in found if each["status"] in ("pending", "in-force")]
    if output == "json":
        print_json(shown)
    elif not shown:
        print_note("no grant is in force or pending")
    else:
        rows = [[str(each[column] or "") for column in _COLUMNS] for each in shown]
        print_table(stdout(), _COLUMNS, rows, colours=_COLOURS)


@app.command("approve")
def approve(
    id: GrantArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOrFormatOption = "text",
) -> None:
    """Approve a request: the grant is in force from now on, in every process. Never your own.

    Exit codes: 0 approved, 1 not approved, 2 wrong use.
    """
    remote = connect(url, token_file, insecure=insecure)
    _print_grant(_ask(lambda: remote.post(f"/v1/grants/{quote(id, safe='')}/approve", {})), output)


@app.command("refuse")
def refuse(
    id: GrantArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOrFormatOption = "text",
) -> None:
    """Refuse a request.

    Exit codes: 0 refused, 1 not refused, 2 wrong use.
    """
    remote = connect(url, token_file, insecure=insecure)
    _print_grant(_ask(lambda: remote.post(f"/v1/grants/{quote(id, safe='')}/refuse", {})), output)


@app.command("revoke")
def revoke(
    id: GrantArgument,
    reason: ReasonOption,
    name: OperatorOption = None,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    database: DatabaseOption = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """End a grant or a request at once. When this returns, no process decides with it any more.

    Exit codes: 0 revoked, 1 it is not in force or the store cannot be changed, 2 wrong use.
    """
    store = find_store(folder, policies, environment=environment, database=database)
    by = operator_name(name)
    grant = use_grants(store, lambda grants: grants.revoke(id, by=by, reason=reason))
    _print_grant(dict(grant.to_dict(forward_now())), output)


def _ask(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = work()
    except GatewayRefusal as refusal:
        if refusal.status == 401:
            fail("the gateway does not accept the token", "give a valid token with --token-file", code=1)
        fail("; ".join(refusal.errors) or refusal.detail, refusal.help, code=1)
    return found


def _print_grant(grant: dict[str, Any], output: str) -> None:
    if output == "json":
        print_json(grant)
        return
    end = f" until {grant['until']}" if grant["status"] == "in-force" else ""
    line = f"{grant['id']}  {grant['role']} for {grant['subject']}: "
    print_line(stdout(), line, (grant["status"], _COLOURS.get(grant["status"], "")), end)
    if grant["status"] == "pending":
        print_note(f"an approver of {grant['policy']} decides: gateway grant approve {grant['id']}")
