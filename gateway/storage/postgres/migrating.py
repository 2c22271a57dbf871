"""Bringing a PostgreSQL database to the schema of this program, all steps or none, one program at a time.

A gateway that starts changes no schema: it refuses one that is older or newer than its own, and says what to do.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from gateway.errors import StoreNotOurs, StoreUnavailable
from gateway.storage.migrating import ONE_AT_A_TIME, SCRIPTS, VERSION_TABLE, versions
from gateway.storage.postgres.sessions import Session

_OURS: Final = ("turns", "calls", "claims", "approvals", "audit")
_LOCK: Final = 0x67772E32
FIRST: Final = "0007"
"""The version that PostgreSQL began with."""

_COUNTS: Final = (
    "SELECT count(*) FROM leases WHERE until > clock_timestamp()",
    "SELECT count(*) FROM calls WHERE status = 'started'",
    "SELECT count(*) FROM approvals WHERE state = 'pending'",
)


def migrate(address: str, *, to: str | None = None, scripts: Path = SCRIPTS) -> tuple[str | None, str]:
    """The version before and after. Raises `StoreNotOurs` for a database that must be left alone.

    With `to`, an earlier version: what its program does not know is taken back, and lost.
    """
    if to is not None and to not in possible(scripts):
        raise StoreNotOurs(
            f"there is no version {to[:40]!r} to go to", help=f"name one of {', '.join(possible(scripts))}"
        )
    session = Session(address, patience=None)
    try:
        with ONE_AT_A_TIME:
            return _migrated(session, to, scripts)
    finally:
        session.close()


def possible(scripts: Path = SCRIPTS) -> list[str]:
    """Versions that a PostgreSQL database can have, the newest last."""
    known = versions(scripts)
    return known[known.index(FIRST) :]


def version_of(session: Session) -> str | None:
    """`None` for a database that nobody has set up."""
    if not _has(session, VERSION_TABLE):
        return None
    found = session.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608 - a name of ours
    return None if found is None else str(found[0])


@dataclass(frozen=True, slots=True)
class State:
    """What `gateway storage check` tells. Without the right version, the rest is not known."""

    server: str
    version: str | None
    needed: str
    gateways: int | None = None
    running_calls: int | None = None
    pending_approvals: int | None = None

    @property
    def is_good(self) -> bool:
        return self.version == self.needed


def state_of(address: str) -> State:
    """Raises `StoreUnavailable` for a database that cannot be reached, or cannot be written to."""
    session = Session(address)
    try:
        [server] = session.execute("SHOW server_version").fetchone()
        version, needed = version_of(session), versions()[-1]
        if version != needed:
            return State(server, version, needed)
        session.begin(is_alone=False)  # which needs the right to write
        session.execute("UPDATE changes SET number = number")
        session.execute("ROLLBACK")
        counts = [int(session.execute(statement).fetchone()[0]) for statement in _COUNTS]
        return State(server, version, needed, *counts)
    finally:
        session.close()


def refuse_other_versions(session: Session) -> None:
    """Raises `StoreNotOurs` unless the schema is exactly the one of this program."""
    version, known = version_of(session), versions()
    if version == known[-1]:
        return
    if version is not None and version not in known:
        raise _newer(version)
    old = "is not set up" if version is None else f"has version {version}, and this program needs {known[-1]}"
    raise StoreNotOurs(f"the database {old}", help="run: gateway storage migrate")


def _migrated(session: Session, to: str | None, scripts: Path) -> tuple[str | None, str]:
    from gateway.storage.schema_steps import Borrowed, change_schema  # gateways that serve do without Alembic

    session.execute("SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0")
    session.begin(is_alone=False)
    try:
        session.execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        before = version_of(session)
        if before is None and (taken := [name for name in _OURS if _has(session, name)]):
            raise StoreNotOurs(
                f"the database has a table {taken[0]!r} of another program",
                help="give the gateway a database, or a schema in its search_path, of its own",
            )
        if before is not None and before not in versions(scripts):
            raise _newer(before)
        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: Borrowed(session.raw),
            poolclass=StaticPool,
            use_native_hstore=False,
        )
        change_schema(engine, to or "head", scripts=scripts)
        after = version_of(session)
        session.execute("COMMIT")
    except DBAPIError as error:
        raise StoreUnavailable(
            "the schema cannot be changed", help="let the role of the connection create tables", cause=error
        ) from error
    return before, str(after)


def _has(session: Session, table: str) -> bool:
    found = session.execute("SELECT to_regclass(?) IS NOT NULL", (table,)).fetchone()
    return bool(found and found[0])


def _newer(version: str) -> StoreNotOurs:
    return StoreNotOurs(
        f"the database has version {version}, which is newer than this program",
        help="start the newer program again, or have it go back first: gateway storage migrate --to VERSION",
    )
