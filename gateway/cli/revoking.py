"""`gateway token revoke`, `restore` and `revoked`: tokens that count no more, in every process that serves.

They work on the store itself, whether or not a gateway runs on it.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from gateway.cli.console import fail, out, print_json, print_line
from gateway.cli.project import DEFAULT_FOLDER, Environment, Policies, ProjectFolder
from gateway.cli.stores import As, Database, For, Output, Reason, done, print_all, store_of, who
from gateway.governance.revocations import InvalidRevocation, Revocation, RevocationChange
from gateway.identity.api_tokens import TOKEN_PREFIX
from gateway.runtime.engines import PostgresAddress
from gateway.runtime.quarantining import stops_of

_COLUMNS: Final = ("token", "since", "until", "by", "reason")

Id = Annotated[str, typer.Argument(metavar="ID", help="A signed token's jti, or the SHA-256 of an API token.")]


def revoke(
    id: Id,
    reason: Reason,
    period: For = None,
    name: As = None,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    database: Database = None,
    output: Output = "text",
) -> None:
    """Refuse a token from now on, in every process that serves; --for, until it ends by itself.

    Exit codes: 0 revoked, 1 the store cannot be changed, 2 wrong use.
    """
    if id.startswith(TOKEN_PREFIX):
        fail("that is a token itself, which is best written nowhere", "give its SHA-256")
    since = datetime.now(UTC)
    try:
        revocation = Revocation(id, reason, who(name), since, None if period is None else since + period)
    except InvalidRevocation as error:
        fail(error.message, error.help)
    store = store_of(folder, policies, environment=environment, database=database)

    async def change() -> RevocationChange:
        async with stops_of(store.path) as stops:
            return await stops.revoke(revocation)

    _tell(done(change()), output)


def restore(
    id: Id,
    reason: Reason,
    name: As = None,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    database: Database = None,
    output: Output = "text",
) -> None:
    """Take a revocation back.

    Exit codes: 0 restored, 1 it was not revoked or the store cannot be changed, 2 wrong use.
    """
    store = store_of(folder, policies, environment=environment, database=database)

    async def change() -> RevocationChange:
        async with stops_of(store.path) as stops:
            return await stops.restore(id, reason=reason, by=who(name))

    _tell(done(change()), output)


def list_revoked(
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    database: Database = None,
    output: Output = "text",
) -> None:
    """List revoked tokens, oldest first.

    Exit codes: 0 listed, 1 the store cannot be read, 2 wrong use.
    """
    store = store_of(folder, policies, environment=environment, database=database)
    print_all(done(_listed(store.path)), _COLUMNS, nothing="no token is revoked", output=output)


async def _listed(database: Path | PostgresAddress) -> list[Revocation]:
    async with stops_of(database) as stops:
        return await stops.revocations.listed()


def _tell(change: RevocationChange, output: Output) -> None:
    if output == "json":
        data = {"action": change.action, **change.revocation.as_data()}
        print_json(data)
        return
    became = "is revoked" if change.action == "revoke" else "counts again"
    print_line(out(), ("✓ ", "green"), f"{change.revocation.token_id} {became}")
