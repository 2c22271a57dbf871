"""Another revision without another process: read, judged and made beside the one that is served, then put in its place.

Whatever is wrong with it, the old one stays, and says why. Who may ask for a reload is not decided here.
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

from gateway.assembly import Assembled
from gateway.bundles.contents import Sign
from gateway.config.pins import upstreams_of
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.errors import GatewayError, ProgramError, StoreUnavailable
from gateway.review.policy_tests import run_cases
from gateway.runtime.bundled import LastGood
from gateway.runtime.kept import gateway_of, storage_of
from gateway.runtime.revisions import Revision
from gateway.runtime.running import ConfigInvalid, Prepared, Running, prepared, telemetry_of
from gateway.runtime.settings import Settings
from gateway.runtime.sourcing import Source, Taken

Agree = Callable[[str], Awaitable[None]]
Why = Literal["signal", "request", "watch"]
What = Literal["published", "unchanged", "refused"]

MOST_PROBLEMS: Final = 50
"""How many problems are told of a reload that was refused."""

_TRIES: Final = 5
_NOTHING_SEEN: Final[Sign] = ("nothing seen",)
_log: Final = logging.getLogger(__name__)


class ReloadRefused(ProgramError):
    """What keeps a project from being served though it has no errors."""

    code = "E_RELOAD_REFUSED"

    def __init__(self, problems: Sequence[str], *, help: str | None = None) -> None:
        super().__init__(problems[0], help=help)
        self.problems = tuple(problems)


class Together(Protocol):
    """Several workers that change revisions at the same time."""

    @property
    def leads(self) -> bool: ...

    async def reload(self, expected: str | None, why: Why) -> dict[str, Any]: ...

    async def revisions(self) -> dict[str, str | None]: ...

    async def agree(self) -> None: ...


class AnotherRevision(GatewayError):
    code = "E_ANOTHER_REVISION"
    status = 412
    default_message = "another revision is served than the one that was named"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a reload. `revision` is what is served afterwards."""

    what: What
    why: Why
    revision: str
    before: str
    at: datetime
    seconds: float
    problems: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
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
class Next:
    """What may come into force; without a revision, it is what is served already."""

    taken: Taken
    ready: Prepared
    revision: Revision | None


@dataclass(slots=True)
class Reloading:
    """One per process."""

    running: Running
    source: Source
    current: Prepared
    taken: Taken
    last_good: LastGood
    last: Outcome | None = None
    together: "Together | None" = None
    """With the other workers, if there are several."""
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set["asyncio.Task[Any]"] = field(default_factory=set)

    async def reload(self, why: Why, *, expected: str | None = None, agree: Agree | None = None) -> Outcome:
        """Serve what is there now, if it is sound. Raises `AnotherRevision` if `expected` is not what is served.

        `agree` is told the digest of what is about to come into force, and raises if that must not happen.
        """
        async with self.changing():
            before, began = self.revision, monotonic()
            if expected is not None and not _names(expected, before):
                raise AnotherRevision(help="look at what is served now, then ask again")
            what, problems = await self._reloaded(agree)
            return self.told(what, why, before, began, problems)

    async def everywhere(self, expected: str | None, why: Why = "request") -> dict[str, Any]:
        """The same in every worker, or in none; what became of it, told as data."""
        if self.together is not None:
            return await self.together.reload(expected, why)
        return (await self.reload(why, expected=expected)).as_data()

    def ask(self, why: Why) -> None:
        """The same for whoever does not wait for it."""
        self.begin_task(self.everywhere(None, why))

    def begin_task(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def watch(self, every: float) -> None:
        """Reload whenever there is something else, once nobody has written to it for a whole interval.

        Of several workers one looks, for all.
        """
        if self.together is None or self.together.leads:
            self.begin_task(self._watched(every))

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def status(self) -> Mapping[str, Any]:
        return {
            "since": _moment(self.running.revisions.current.since),
            "source": {**self.taken.about, "digest": self.taken.digest},
            "expires": self.running.controlled.validity.told,
            "draining": self.running.revisions.draining,
            "lastReload": None if self.last is None else self.last.as_data(),
        }

    @property
    def problem(self) -> str | None:
        """For whoever may not know more."""
        is_refused = self.last is not None and self.last.what == "refused"
        return "the last reload was refused: an earlier configuration is served" if is_refused else None

    @property
    def revision(self) -> str:
        """What is served."""
        return self.running.service.published.snapshot.revision

    async def _reloaded(self, agree: Agree | None) -> tuple[What, tuple[str, ...]]:
        try:
            found = await self.next(self.source)
        except Exception as error:
            return "refused", problems_of(error)
        try:
            if agree is not None:
                await agree(found.taken.digest)
            await asyncio.to_thread(found.taken.use)
        except Exception as error:
            await self.let_go(found)
            return "refused", problems_of(error)
        return await self.put(found), ()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """While nobody else in this process makes another revision."""
        async with self._one_at_a_time, self.running.revisions.changing:
            yield

    async def next(self, source: Source, *, digest: str | None = None) -> Next:
        """What may come into force. Raises whatever keeps it from that; with a digest, other files do."""
        with _calls_first():
            return await self._next(source, digest)

    async def _next(self, source: Source, digest: str | None) -> Next:
        environ = self.current.environ
        taken, ready = await asyncio.to_thread(prepared_from, source, self.running.settings, environ=environ)
        try:
            if digest not in (None, taken.digest):
                raise ReloadRefused(["the files are others than those that another worker read"], help="reload again")
            revision = None if self._is_same(ready) else await self._made(ready)
        except BaseException:
            taken.release()
            raise
        return Next(taken, ready, revision)

    async def put(self, found: Next) -> What:
        """Have it come into force."""
        taken, ready, revision = found.taken, found.ready, found.revision
        is_same = revision is None or (
            revision.access.snapshot.revision == self.revision and ready.providers == self.current.providers
        )
        if revision is None or is_same:
            await self._taken_anew(taken)
            await self.let_go(found)
            return "unchanged"
        self.running.controlled.validity.until = taken.until
        self.running.revisions.put(revision)
        self.current, self.taken = ready, taken
        await self._noted()
        await self._kept()
        return "published"

    async def let_go(self, found: Next) -> None:
        if found.revision is None:
            found.taken.release()
        else:
            await self.running.revisions.discard(found.revision)

    async def _taken_anew(self, taken: Taken) -> None:
        """The same documents as before; a bundle may count longer now."""
        is_renewed = taken.until != self.taken.until
        self.running.controlled.validity.until, self.taken = taken.until, taken
        if is_renewed:
            await self._kept()

    def _is_same(self, ready: Prepared) -> bool:
        """Servers whose changes are accepted may bring something else each time."""
        is_same = ready.access.snapshot.revision == self.current.access.snapshot.revision
        return is_same and ready.providers == self.current.providers and not _accepts(ready.assembled)

    async def _made(self, ready: Prepared) -> Revision:
        if needed := restart_for(self.current.assembled, ready.assembled):
            raise ReloadRefused([f"{each} is only read at a start" for each in needed], help="restart the gateway")
        revision = await self.running.revisions.made(ready.draft)
        try:
            if _runs_tests(self.current.assembled) or _runs_tests(ready.assembled):
                failed = await asyncio.to_thread(_failed_tests, revision)
                if failed:
                    raise ReloadRefused(failed, help="run: gateway test")
        except BaseException:
            await self.running.revisions.discard(revision)
            raise
        return revision

    async def _kept(self) -> None:
        """So that a start can fall back to it, and a worker that is replaced goes on with it."""
        try:
            await asyncio.to_thread(self.last_good.keep, self.taken)
        except OSError as error:
            _log.warning("what is served now was not kept for a bad day (%s)", type(error).__name__)
        except GatewayError as error:
            _log.warning("what is served now was not kept for a bad day: %s", error.message)
        self.taken = replace(self.taken, contents=dict, content=None, use=lambda: None)  # nobody needs the bytes again

    async def begin(self) -> None:
        """What was started with is good, unless it is the last good one itself."""
        if "lastGood" not in self.taken.about:
            await self._kept()
        if self.together is not None:
            await self.together.agree()

    async def _noted(self) -> None:
        controlled = self.running.controlled
        try:
            await controlled.store.note([controlled.auditor.happened("config-published")])
        except StoreUnavailable:
            _log.exception("the decision log does not say that another revision came into force")

    def told(self, what: What, why: Why, before: str, began: float, problems: Sequence[str]) -> Outcome:
        """Say what became of a reload."""
        at = datetime.now(UTC)
        outcome = Outcome(what, why, self.revision, before, at, monotonic() - began, tuple(problems[:MOST_PROBLEMS]))
        self._tell(outcome)
        return outcome

    def _tell(self, outcome: Outcome) -> None:
        self.last = outcome
        if outcome.what != "published":  # that one is counted where it is published
            self.running.metering.meters.reloaded(outcome.what)
        short = outcome.revision[:12]
        if outcome.what == "refused":
            _log.error("a reload was refused, revision %s stays: %s", short, "; ".join(outcome.problems[:5]))
        else:
            _log.info("a reload: %s, revision %s", outcome.what, short)

    async def _watched(self, every: float) -> None:
        tried = seen = await asyncio.to_thread(self._sign)
        if not await asyncio.to_thread(self.source.is_still, self.taken):
            tried = _NOTHING_SEEN
        while True:
            await asyncio.sleep(every)
            before, seen = seen, await asyncio.to_thread(self._sign)
            if seen == before and seen not in (tried, _NOTHING_SEEN):
                tried = seen
                await self.everywhere(None, "watch")

    def _sign(self) -> Sign:
        """Where nobody can tell whether there is something else, there is nothing to reload."""
        try:
            return self.source.sign()
        except GatewayError as error:
            _log.warning("nobody can tell whether the configuration has changed: %s", error.message)
            return _NOTHING_SEEN


def prepared_from(
    source: Source, settings: Settings, *, environ: Mapping[str, str] | None = None
) -> tuple[Taken, Prepared]:
    """What is there, read as a whole: files that change while they are read are read again."""
    for _ in range(_TRIES):
        taken = source.take()
        try:
            found = prepared(settings, environ=environ, taken=taken)
        except BaseException:
            is_still = source.is_still(taken)
            taken.release()
            if is_still:
                raise
        else:
            if source.is_still(taken):
                return taken, found
            taken.release()
    raise ReloadRefused(["the files change while they are read"], help="try again when they are all there")


def restart_for(before: Assembled, after: Assembled) -> list[str]:
    """Parts that differ and are opened once, when the process starts."""
    found = []
    if storage_of(before) != storage_of(after):
        found.append("the Storage")
    if telemetry_of(before) != telemetry_of(after):
        found.append("the Telemetry")
    old, new = gateway_of(before).spec, gateway_of(after).spec
    found += ["audit of the Gateway"] if old.audit != new.audit else []
    found += ["webhooks of the Gateway"] if old.webhooks != new.webhooks else []
    return found


def _runs_tests(assembled: Assembled) -> bool:
    """As the revision in force says, or the next one: neither can spare the other its tests."""
    reload = gateway_of(assembled).spec.reload
    return reload is not None and reload.run_policy_tests


def _failed_tests(revision: Revision) -> list[str]:
    failed = [each for each in run_cases(revision.access, revision.access.snapshot.cases) if not each.passed]
    return [
        f"policy test {each.case.suite}: {each.case.name}: expected {each.expected}, got {each.got}" for each in failed
    ]


def _accepts(assembled: Assembled) -> bool:
    specs: Iterable[object] = (each.spec for each in upstreams_of(assembled.loaded).values())
    return any(isinstance(each, UpstreamDocument) and each.spec.import_.on_change == "accept" for each in specs)


def problems_of(error: Exception) -> tuple[str, ...]:
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
            return (f"something unforeseen went wrong ({type(error).__name__}); the log has it",)


@contextmanager
def _calls_first() -> Iterator[None]:
    """Have the thread that reads documents give way ten times as often: calls wait for the interpreter meanwhile."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 10)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _names(expected: str, revision: str) -> bool:
    """The whole revision, or as much of it as people are shown."""
    return len(expected) >= 12 and revision.startswith(expected)


def _moment(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")
