"""`gateway token`: credentials for callers that cannot sign in, such as agents and pipelines; revoking is elsewhere."""

from typing import Annotated, Literal

import typer

from gateway.cli.console import err, out, print_json, print_line
from gateway.cli.lazy import LazyGroup, Subcommand
from gateway.identity.api_tokens import new_token


class _Tokens(LazyGroup):
    subcommands = (
        Subcommand("revoke", "gateway.cli.revoking:revoke", "Refuse a token from now on, everywhere."),
        Subcommand("restore", "gateway.cli.revoking:restore", "Take a revocation back."),
        Subcommand("revoked", "gateway.cli.revoking:list_revoked", "List revoked tokens."),
    )


app = typer.Typer(
    cls=_Tokens, add_completion=False, no_args_is_help=True, help="Make tokens for callers, and revoke them."
)


@app.callback()
def _group() -> None:
    """Makes typer keep `new` as a word of its own: it knows of no other."""


@app.command("new")
def new(
    output: Annotated[Literal["text", "json"], typer.Option(help="For people, or for programs.")] = "text",
) -> None:
    """Print a fresh token, once, and its SHA-256. The token goes to the caller, only the digest to the gateway."""
    token, digest = new_token()
    if output == "json":
        print_json({"token": token, "sha256": digest}, indent=None)
        return
    print_line(out(), f"token   {token}")
    print_line(out(), f"sha256  {digest}")
    for line in _HOW:
        print_line(err(), line)


_HOW = (
    "",
    "Give the token to its caller, who sends it as: Authorization: Bearer <token>",
    "It is shown this once. Put the digest where the gateway reads it, and name it in an IdentityProvider:",
    "",
    "  spec:",
    "    type: token",
    "    tokens:",
    "      - subject: agent:release-bot",
    "        roles: [role:agent]",
    "        sha256: {fromEnv: RELEASE_BOT_SHA256}",
    '        expires: "2027-06-30"',
)
