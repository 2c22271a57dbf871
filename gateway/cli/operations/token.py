"""`gateway token`: credentials for callers that cannot sign in, such as agents and pipelines.

`revoke`, `restore` and `revoked` work on the store itself, whether or not a gateway runs on it.
"""

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from gateway.cli.main import LazyGroup, Subcommand
from gateway.cli.options import (
    DEFAULT_FOLDER,
    DatabaseOption,
    DurationOption,
    EnvironmentOption,
    OperatorOption,
    OutputOption,
    OutputOrFormatOption,
    PoliciesOption,
    ProjectOption,
    ReasonOption,
)
from gateway.cli.output import fail, print_json, print_line, stderr, stdout
from gateway.cli.stop_list_access import find_store, operator_name, parse_stop, print_list, use_stop_list
from gateway.identity import TOKEN_PREFIX, new_api_token
from gateway.policy import Stop, StopChange, StopTarget

_COLUMNS: Final = ("token", "since", "until", "by", "reason")

TokenIdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A signed token's jti, or the SHA-256 of an API token.")
]


def revoke(
    id: TokenIdArgument,
    reason: ReasonOption,
    period: DurationOption = None,
    name: OperatorOption = None,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    database: DatabaseOption = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """Refuse a token from now on, in every serving process; with --for, for a limited time.

    Exit codes: 0 revoked, 1 the store cannot be changed, 2 wrong use.
    """
    if id.startswith(TOKEN_PREFIX):
        fail("that is the token itself, which must not be recorded", "give its SHA-256")
    since = datetime.now(UTC)
    until = None if period is None else since + period
    stop = parse_stop(lambda: Stop(StopTarget("token", id), reason, operator_name(name), since, until))
    store = find_store(folder, policies, environment=environment, database=database)
    _print_change(use_stop_list(store, lambda stops: stops.add(stop)), output)


def restore(
    id: TokenIdArgument,
    reason: ReasonOption,
    name: OperatorOption = None,
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    database: DatabaseOption = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """Take a revocation back.

    Exit codes: 0 restored, 1 it was not revoked or the store cannot be changed, 2 wrong use.
    """
    store = find_store(folder, policies, environment=environment, database=database)
    target, by = StopTarget("token", id), operator_name(name)
    _print_change(use_stop_list(store, lambda stops: stops.lift(target, reason=reason, by=by)), output)


def list_revocations(
    folder: ProjectOption = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    database: DatabaseOption = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """List revoked tokens, oldest first.

    Exit codes: 0 listed, 1 the store cannot be read, 2 wrong use.
    """
    store = find_store(folder, policies, environment=environment, database=database)
    found = use_stop_list(store, lambda stops: stops.stops.list_revoked_tokens())
    print_list(found, _COLUMNS, nothing="no token is revoked", output=output)


def _print_change(change: StopChange, output: str) -> None:
    is_revoked = change.action == "add"
    if output == "json":
        print_json({"action": "revoke" if is_revoked else "restore", **change.stop.to_dict()})
        return
    became = "is revoked" if is_revoked else "is valid again"
    print_line(stdout(), ("✓ ", "green"), f"{change.stop.target.name} {became}")


class _Tokens(LazyGroup):
    subcommands = (
        Subcommand("revoke", "gateway.cli.operations.token:revoke", "Refuse a token from now on, everywhere."),
        Subcommand("restore", "gateway.cli.operations.token:restore", "Take a revocation back."),
        Subcommand("revoked", "gateway.cli.operations.token:list_revocations", "List revoked tokens."),
    )


app = typer.Typer(
    cls=_Tokens, add_completion=False, no_args_is_help=True, help="Make tokens for callers, and revoke them."
)


@app.callback()
def _group() -> None:
    """Make typer treat `new` as a subcommand: without a callback, an app with one command has no subcommands."""


@app.command("new")
def create_token(output: OutputOption = "text") -> None:
    """Print a new token, once, and its SHA-256. Give the token to the caller and only the digest to the gateway."""
    token, digest = new_api_token()
    if output == "json":
        print_json({"token": token, "sha256": digest}, indent=None)
        return
    print_line(stdout(), f"token   {token}")
    print_line(stdout(), f"sha256  {digest}")
    for line in _HOW:
        print_line(stderr(), line)


_HOW = (
    "",
    "Give the token to its caller, who sends it as: Authorization: Bearer <token>",
    "It is not shown again. Put the digest where the gateway reads it, and name it in an IdentityProvider:",
    "",
    "  spec:",
    "    type: token",
    "    tokens:",
    "      - subject: agent:release-bot",
    "        roles: [role:agent]",
    "        sha256: {fromEnv: RELEASE_BOT_SHA256}",
    '        expires: "2027-06-30"',
)
