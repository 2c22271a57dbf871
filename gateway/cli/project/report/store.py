"""What a report reads from the store of a gateway, which may be running: the decision log and the quarantines."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.app import PostgresUrl, load_postgres, load_usage
from gateway.audit import ChainRow, VerificationReport, VerifyKey, read_anchors, verify
from gateway.cli.output import fail
from gateway.cli.project.access import show_progress
from gateway.cli.stop_list_access import LocatedStore, use_grants, use_stop_list
from gateway.errors import GatewayError
from gateway.policy import Access, Grant, GrantedRoles, GrantLedger, PolicySet
from gateway.review import AuditState, ReportInput, list_grant_access, list_policy_rows, review_access
from gateway.storage import RemoteStore, SqliteAuditReader, StoreLocation

_PARTS: Final = 1000
"""Steps of a progress bar whose end is a fraction."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A store as the command line names it: an SQLite file, or the variable with the connection of PostgreSQL."""

    database: Path | None
    connection_env: str | None

    @property
    def is_named(self) -> bool:
        return self.database is not None or self.connection_env is not None

    def resolve(self) -> Path | PostgresUrl:
        """Return the place of the store. End the command if it does not exist."""
        if self.database is not None and self.connection_env is not None:
            fail("two stores are named", "give --database or --connection-env")
        if self.database is not None:
            if not self.database.is_file():
                fail(f"there is no database {self.database}", "name the SQLite file of a gateway", code=1)
            return self.database
        name = self.connection_env or ""
        if not (address := os.environ.get(name)):
            fail(f"the environment variable {name} is not set", "set it to the connection of the database")
        return PostgresUrl(address)


class _TimedLog:
    """A decision log that remembers the time of the newest entry that was read."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.newest: int | None = None

    def __iter__(self) -> Iterator[ChainRow]:
        for row in self._log:
            if row.at is not None:
                self.newest = max(row.at, self.newest or 0)
            yield row

    def statements(self) -> Iterator[ChainRow]:
        yield from self._log.statements()


def read_store(
    source: ReportInput,
    store: StoreAddress,
    policies: PolicySet,
    *,
    at: datetime,
    unused: timedelta,
    anchors: Path | None,
    public_keys: Sequence[Path],
) -> ReportInput:
    """Return the input with what the store has: grants as of a time, and the use of a period before the day.

    Without a store, the input says so itself.
    """
    if (anchors is None) != (not public_keys):
        fail("anchors and public keys go together", "give both --anchors and --public-key")
    if not store.is_named:
        if anchors is not None:
            fail("anchors are about a decision log, and no store is named", "give --database or --connection-env")
        return source
    place = store.resolve()
    try:
        state = _verify_log(place, anchors, public_keys)
        usage = load_usage(_location(place), since=source.at - unused)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    located = LocatedStore(place)
    stops = use_stop_list(located, lambda found: found.stops.list_stops())
    grants = use_grants(located, lambda found: found.list_grants())
    running = list_grant_access(_with_grants(source, grants, at), grants, at)
    rows = list_policy_rows(policies, source.at)
    with show_progress("asking the policy") as progress:
        review = review_access(source.access, rows, at=source.at, usage=usage, progress=progress)
    return replace(source, review=review, audit=state, stops=stops, grants=tuple(running))


def _location(place: Path | PostgresUrl) -> StoreLocation:
    if isinstance(place, Path):
        return place
    return RemoteStore(partial(load_postgres().open_read_only_session, place.text))


@dataclass(frozen=True, slots=True)
class _StoredGrants:
    """Implements `gateway.policy.GrantSource` with the grants of one reading."""

    ledger: GrantLedger

    def current(self) -> GrantLedger:
        return self.ledger


def _with_grants(source: ReportInput, grants: Sequence[Grant], at: datetime) -> Access:
    """Return the access of callers with the roles that these grants add at that time."""
    approved = GrantLedger.of(each for each in grants if each.state in ("approved", "revoked"))
    access = source.access
    roles = GrantedRoles(source.snapshot.grants, _StoredGrants(approved), access.authoriser.roles_of, clock=lambda: at)
    return access.with_grants(roles.find)


def _verify_log(place: Path | PostgresUrl, anchors: Path | None, public_keys: Sequence[Path]) -> AuditState:
    keys = [VerifyKey.load(path.read_bytes()) for path in public_keys]
    known = None if anchors is None else list(read_anchors(anchors))
    with _open_log(place) as log:
        timed = _TimedLog(log)
        with show_progress("verifying the decision log") as progress:
            report = verify(
                timed,
                anchors=known,
                keys=keys,
                progress=None if progress is None else lambda _: progress(round(log.fraction() * _PARTS), _PARTS),
            )
    return _to_state(report, timed.newest)


def _to_state(report: VerificationReport, newest: int | None) -> AuditState:
    until = None if newest is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=newest)
    findings = tuple(str(each) for each in report.findings)
    shards = len(report.shards)
    return AuditState(report.entries, shards, report.anchors, report.unanchored, until, findings, tuple(report.notes))


@contextmanager
def _open_log(place: Path | PostgresUrl) -> Iterator[Any]:
    if isinstance(place, PostgresUrl):
        with load_postgres().PostgresAuditReader(place.text) as found:
            yield found
    else:
        with SqliteAuditReader(place) as rows:
            yield rows
