"""Reload: read, check and build the next revision beside the current one, then activate it.

If anything is wrong with it, the current revision stays and the reasons are reported. Callers are authorised elsewhere.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, Literal, Protocol

from gateway.app.app import App, AppInputs, ConfigInvalid, prepare_app
from gateway.app.project import LoadedProject
from gateway.app.project_files import ChangeToken
from gateway.app.project_source import LastGoodBundle, ProjectCopy, ProjectSource
from gateway.app.revisions.manager import Revision, requires_policy_tests
from gateway.app.settings import Settings
from gateway.config import UpstreamDocument, list_upstreams
from gateway.errors import GatewayError, ProgramError, StoreUnavailable
from gateway.review import CaseResult

CommitReload = Callable[[str], Awaitable[None]]
ReloadCause = Literal["signal", "request", "watch"]
ReloadResult = Literal["published", "unchanged", "refused"]

MAX_PROBLEMS: Final = 50
"""How many problems of a refused reload are reported."""

_TRIES: Final = 5
_NOTHING_SEEN: Final[ChangeToken] = ("nothing seen",)
_log: Final = logging.getLogger(__name__)


class ReloadRefused(ProgramError):
    """A project has no errors but cannot be served."""

    code = "E_RELOAD_REFUSED"

    def __init__(self, problems: Sequence[str], *, help: str | None = None) -> None:
        super().__init__(problems[0], help=help)
        self.problems = tuple(problems)


class ReloadCoordinator(Protocol):
    """The workers of a gateway, which change revisions at the same time."""

    @property
    def leads(self) -> bool: ...

    async def reload(self, expected: str | None, why: ReloadCause) -> dict[str, Any]: ...

    async def revisions(self) -> dict[str, str | None]: ...

    async def catch_up(self) -> None: ...


class RevisionMismatch(GatewayError):
    code = "E_ANOTHER_REVISION"
    status = 412
    default_message = "the revision that was named is not the one that is served"


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
    """The result of a reload. `revision` is served afterwards."""

    what: ReloadResult
    why: ReloadCause
    revision: str
    before: str
    at: datetime
    seconds: float
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "outcome": self.what,
            "asked": self.why,
            "revision": self.revision,
            "before": self.before,
            "at": _moment(self.at),
            "seconds": round(self.seconds, 3),
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True)
class PendingRevision:
    """A project that may be activated; without a revision, it is served already."""

    taken: ProjectCopy
    ready: AppInputs
    revision: Revision | None


@dataclass(slots=True)
class Reloader:
    """Reloads the project of this process."""

    running: App
    source: ProjectSource
    current: AppInputs
    taken: ProjectCopy
    last_good: LastGoodBundle
    last: ReloadOutcome | None = None
    together: "ReloadCoordinator | None" = None
    """Coordinates reloads with other workers, if there are any."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set["asyncio.Task[Any]"] = field(default_factory=set)

    async def reload(
        self, why: ReloadCause, *, expected: str | None = None, agree: CommitReload | None = None
    ) -> ReloadOutcome:
        """Serve the current project if it is valid. Raises `RevisionMismatch` if `expected` is not served now.

        `agree` is called with the digest of the new project, and raises if it must not be activated.
        """
        async with self.lock():
            before, began = self.revision, monotonic()
            if expected is not None and not _matches(expected, before):
                raise RevisionMismatch(help="look at the served revision, then try again")
            what, problems = await self._reload(agree)
            return self.report(what, why, before, began, problems)

    async def reload_all_workers(self, expected: str | None, why: ReloadCause = "request") -> dict[str, Any]:
        """Reload in every worker or in none, and return the outcome as data."""
        if self.together is not None:
            return await self.together.reload(expected, why)
        return (await self.reload(why, expected=expected)).to_dict()

    def request(self, why: ReloadCause) -> None:
        """Start a reload in the background."""
        self.begin_task(self.reload_all_workers(None, why))

    def begin_task(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def watch(self, every: float) -> None:
        """Reload after every change, once the source has not changed for a whole interval.

        One of several workers watches for all.
        """
        if self.together is None or self.together.leads:
            self.begin_task(self._poll_source(every))

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def status(self) -> Mapping[str, Any]:
        return {
            "since": _moment(self.running.revisions.current.since),
            "source": {**self.taken.about, "digest": self.taken.digest},
            "expires": self.running.controlled.validity.describe,
            "draining": self.running.revisions.draining,
            "lastReload": None if self.last is None else self.last.to_dict(),
        }

    @property
    def problem(self) -> str | None:
        """A refused reload in words that reveal nothing of the configuration."""
        is_refused = self.last is not None and self.last.what == "refused"
        return "the last reload was refused: an earlier configuration is served" if is_refused else None

    @property
    def revision(self) -> str:
        """The served revision."""
        return self.running.service.published.snapshot.revision

    async def _reload(self, agree: CommitReload | None) -> tuple[ReloadResult, tuple[str, ...]]:
        try:
            found = await self.prepare(self.source)
        except Exception as error:
            return "refused", to_problems(error)
        try:
            if agree is not None:
                await agree(found.taken.digest)
            await asyncio.to_thread(found.taken.use)
        except Exception as error:
            await self.discard(found)
            return "refused", to_problems(error)
        return await self.activate(found), ()

    @asynccontextmanager
    async def lock(self) -> AsyncIterator[None]:
        """Hold the locks that prevent other changes of the revision in this process."""
        async with self._one_at_a_time, self.running.revisions.changing:
            yield

    async def prepare(self, source: ProjectSource, *, digest: str | None = None) -> PendingRevision:
        """Build what may be activated. Raises if it cannot be, or if the files do not have the digest."""
        with _yield_to_calls():
            return await self._load_next(source, digest)

    async def _load_next(self, source: ProjectSource, digest: str | None) -> PendingRevision:
        environ = self.current.environ
        taken, ready = await asyncio.to_thread(prepare_from_source, source, self.running.settings, environ=environ)
        try:
            if digest not in (None, taken.digest):
                raise ReloadRefused(["the files differ from those that another worker read"], help="reload again")
            revision = None if self._is_same(ready) else await self._build_revision(ready)
        except BaseException:
            taken.release()
            raise
        return PendingRevision(taken, ready, revision)

    async def activate(self, found: PendingRevision) -> ReloadResult:
        """Serve the revision."""
        taken, ready, revision = found.taken, found.ready, found.revision
        is_same = revision is None or (
            revision.access.snapshot.revision == self.revision and ready.providers == self.current.providers
        )
        if revision is None or is_same:
            await self._renew_copy(taken)
            await self.discard(found)
            return "unchanged"
        self.running.controlled.validity.until = taken.until
        self.running.revisions.activate(revision)
        self.current, self.taken = ready, taken
        await self._record()
        await self._store_last_good()
        return "published"

    async def discard(self, found: PendingRevision) -> None:
        if found.revision is None:
            found.taken.release()
        else:
            await self.running.revisions.discard(found.revision)

    async def _renew_copy(self, taken: ProjectCopy) -> None:
        """Note a copy with the same documents; a bundle may be valid for longer now."""
        is_renewed = taken.until != self.taken.until
        self.running.controlled.validity.until, self.taken = taken.until, taken
        if is_renewed:
            await self._store_last_good()

    def _is_same(self, ready: AppInputs) -> bool:
        """Whether nothing changes. Upstreams whose changes are accepted may have changed."""
        is_same = ready.access.snapshot.revision == self.current.access.snapshot.revision
        return is_same and ready.providers == self.current.providers and not _accepts_changes(ready.assembled)

    async def _build_revision(self, ready: AppInputs) -> Revision:
        if needed := find_restart_reasons(self.current.assembled, ready.assembled):
            raise ReloadRefused([f"{each} is only read at the start" for each in needed], help="restart the gateway")
        revision = await self.running.revisions.prepare(ready.draft)
        try:
            if requires_policy_tests(self.current.assembled) or requires_policy_tests(ready.assembled):
                failed = await asyncio.to_thread(revision.find_failed_policy_tests)
                if failed:
                    raise ReloadRefused([_describe_failure(each) for each in failed], help="run: gateway test")
        except BaseException:
            await self.running.revisions.discard(revision)
            raise
        return revision

    async def _store_last_good(self) -> None:
        """Store the served project, so that a failed start can fall back to it and a replaced worker serves it."""
        try:
            await asyncio.to_thread(self.last_good.store, self.taken)
        except OSError as error:
            _log.warning("the served revision was not stored as the last good one (%s)", type(error).__name__)
        except GatewayError as error:
            _log.warning("the served revision was not stored as the last good one: %s", error.message)
        self.taken = replace(self.taken, contents=dict, content=None, use=lambda: None)  # frees the bytes

    async def begin(self) -> None:
        """Store the first project as the last good one, unless it was loaded from there."""
        if "lastGood" not in self.taken.about:
            await self._store_last_good()
        if self.together is not None:
            await self.together.catch_up()

    async def _record(self) -> None:
        controlled = self.running.controlled
        try:
            await controlled.store.note([controlled.auditor.event_entry("config-published")])
        except StoreUnavailable:
            _log.exception("the new revision could not be recorded in the decision log")

    def report(
        self, what: ReloadResult, why: ReloadCause, before: str, began: float, problems: Sequence[str]
    ) -> ReloadOutcome:
        """Return the outcome of a reload after storing, counting and logging it."""
        at = datetime.now(UTC)
        outcome = ReloadOutcome(
            what, why, self.revision, before, at, monotonic() - began, tuple(problems[:MAX_PROBLEMS])
        )
        self._record_outcome(outcome)
        return outcome

    def _record_outcome(self, outcome: ReloadOutcome) -> None:
        self.last = outcome
        if outcome.what != "published":  # a publication is counted elsewhere
            self.running.metering.meters.count_reload(outcome.what)
        short = outcome.revision[:12]
        if outcome.what == "refused":
            _log.error("a reload was refused, revision %s stays: %s", short, "; ".join(outcome.problems[:5]))
        else:
            _log.info("a reload: %s, revision %s", outcome.what, short)

    async def _poll_source(self, every: float) -> None:
        tried = seen = await asyncio.to_thread(self._fingerprint)
        if not await asyncio.to_thread(self.source.is_unchanged, self.taken):
            tried = _NOTHING_SEEN
        while True:
            await asyncio.sleep(every)
            before, seen = seen, await asyncio.to_thread(self._fingerprint)
            if seen == before and seen not in (tried, _NOTHING_SEEN):
                tried = seen
                await self.reload_all_workers(None, "watch")

    def _fingerprint(self) -> ChangeToken:
        """Return the fingerprint of the source, or `_NOTHING_SEEN` if it cannot be read."""
        try:
            return self.source.fingerprint()
        except GatewayError as error:
            _log.warning("cannot check whether the configuration has changed: %s", error.message)
            return _NOTHING_SEEN


def prepare_from_source(
    source: ProjectSource, settings: Settings, *, environ: Mapping[str, str] | None = None
) -> tuple[ProjectCopy, AppInputs]:
    """Load and prepare a project; files that change while they are read are read again."""
    for _ in range(_TRIES):
        taken = source.load()
        try:
            found = prepare_app(settings, environ=environ, taken=taken)
        except BaseException:
            is_still = source.is_unchanged(taken)
            taken.release()
            if is_still:
                raise
        else:
            if source.is_unchanged(taken):
                return taken, found
            taken.release()
    raise ReloadRefused(["the files change while they are read"], help="try again when all files are written")


def find_restart_reasons(before: LoadedProject, after: LoadedProject) -> list[str]:
    """Return the parts that differ and are only opened at the start."""
    found = []
    if before.storage_spec != after.storage_spec:
        found.append("the Storage")
    if before.telemetry_spec != after.telemetry_spec:
        found.append("the Telemetry")
    old, new = before.gateway_spec, after.gateway_spec
    found += ["audit of the Gateway"] if old.audit != new.audit else []
    found += ["webhooks of the Gateway"] if old.webhooks != new.webhooks else []
    return found


def _describe_failure(failed: CaseResult) -> str:
    case = failed.case
    return f"policy test {case.suite}: {case.name}: expected {case.expected}, got {failed.got}"


def _accepts_changes(assembled: LoadedProject) -> bool:
    specs: Iterable[object] = (each.spec for each in list_upstreams(assembled.loaded).values())
    return any(isinstance(each, UpstreamDocument) and each.spec.import_.on_change == "accept" for each in specs)


def to_problems(error: Exception) -> tuple[str, ...]:
    match error:
        case ConfigInvalid():
            wrong = [each for each in error.diagnostics if each.is_error]
            return tuple(f"{each.position}: {each.code}: {each.message}" for each in wrong)
        case ReloadRefused():
            return error.problems
        case GatewayError():
            return (f"{error.message}; {error.help}" if error.help else error.message,)
        case _:
            _log.error("a reload failed", exc_info=error)
            return (f"unexpected error ({type(error).__name__}); see the log",)


@contextmanager
def _yield_to_calls() -> Iterator[None]:
    """Switch threads ten times as often, so that calls are not delayed by the thread that reads documents."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _matches(expected: str, revision: str) -> bool:
    """Whether `expected` is the revision or a prefix of at least the 12 characters that people see."""
    return len(expected) >= 12 and revision.startswith(expected)


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
