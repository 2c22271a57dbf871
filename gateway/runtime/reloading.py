"""Another revision without another process: read, judged and made beside the one that is served, then put in its place.

Whatever is wrong with it, the old one stays, and says why. Who may ask for a reload is not decided here.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, Literal

from gateway.assembly import Assembled
from gateway.bundles.contents import Sign
from gateway.config.pins import upstreams_of
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.errors import GatewayError, ProgramError, StoreUnavailable
from gateway.review.policy_tests import run_cases
from gateway.runtime.agreeing import Answer, Crew, StandingBy, Told, answered
from gateway.runtime.bundled import LastGood
from gateway.runtime.kept import gateway_of, storage_of
from gateway.runtime.revisions import Revision
from gateway.runtime.running import ConfigInvalid, Prepared, Running, prepared, telemetry_of
from gateway.runtime.settings import Settings
from gateway.runtime.sourcing import Source, Taken
from gateway.web.edge import Receive, Scope, Send
from gateway.web.problems import json_response

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


@dataclass(slots=True)
class Reloading:
    """One per process."""

    running: Running
    source: Source
    current: Prepared
    taken: Taken
    last_good: LastGood
    last: Outcome | None = None
    crew: Crew | None = None
    """The other workers, if there are several."""
    _standing_by: StandingBy | None = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set["asyncio.Task[Any]"] = field(default_factory=set)

    async def reload(self, why: Why, *, expected: str | None = None, agree: Agree | None = None) -> Outcome:
        """Serve what is there now, if it is sound. Raises `AnotherRevision` if `expected` is not what is served.

        `agree` is told the digest of what is about to come into force, and raises if that must not happen.
        """
        async with self._one_at_a_time, self.running.revisions.changing:
            before, began = self._revision, monotonic()
            if expected is not None and not _names(expected, before):
                raise AnotherRevision(help="look at what is served now, then ask again")
            with _calls_first():
                what, problems = await self._reloaded(agree)
            return self._told(what, why, before, began, problems)

    async def everywhere(self, expected: str | None, why: Why = "request") -> dict[str, Any]:
        """The same in every worker, or in none; what became of it, and which worker serves which revision then."""
        crew = self.crew
        if crew is None:
            return (await self.reload(why, expected=expected)).as_data()
        if (led := await crew.led(expected=expected, why=why)) is not None:
            if led.get("code") == AnotherRevision.code:
                raise AnotherRevision(help="look at what is served now, then ask again")
            return dict(led)
        return await self._lead(crew, expected, why)

    async def _lead(self, crew: Crew, expected: str | None, why: Why) -> dict[str, Any]:
        async def agree(digest: str) -> None:
            if problems := await crew.prepared(digest, why):
                raise ReloadRefused(problems)

        outcome = await self.reload(why, expected=expected, agree=agree)
        await crew.told(is_put=outcome.what != "refused", problems=outcome.problems, why=why)
        is_refused = outcome.what == "refused"
        others = (await crew.served()) if is_refused else {}
        revisions = dict.fromkeys(crew.others) | {index: str(told["revision"]) for index, told in others.items()}
        if not is_refused:
            revisions = await crew.agreed(outcome.revision)
        apart = [
            f"worker {index} {'does not answer' if found is None else f'serves revision {found[:12]}'}"
            for index, found in sorted(revisions.items())
            if found != outcome.revision
        ]
        served = {crew.worker: outcome.revision, **revisions}
        return {
            **outcome.as_data(),
            "problems": [*outcome.problems, *apart],
            "workers": {str(index): served[index] for index in sorted(served)},
        }

    async def inside(self, scope: Scope, receive: Receive, send: Send) -> None:
        """For another worker."""
        answers: Mapping[str, Answer] = {
            "lead": self._led,
            "prepare": self._prepare,
            "word": self._hear,
            "served": self._serving,
        }
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        told = await answered(scope["path"], body, answers)
        await json_response({} if told is None else told, status=404 if told is None else 200)(scope, receive, send)

    async def _led(self, asked: Told) -> Told:
        try:
            return await self._lead(self._crew, asked["expected"], asked["why"])
        except AnotherRevision as error:
            return {"code": error.code}

    async def _prepare(self, asked: Told) -> Told:
        if self._standing_by is not None:
            return {"problems": ["another reload is under way"]}
        standing = self._standing_by = StandingBy.new(asked["digest"])
        self._begin(self._stand_by(standing, asked["why"]))
        return {"problems": await standing.answered}

    async def _stand_by(self, standing: StandingBy, why: Why) -> None:
        """Be ready to serve the same as the worker that leads, until it says whether to."""
        try:
            async with self._one_at_a_time, self.running.revisions.changing:
                before, began = self._revision, monotonic()
                try:
                    with _calls_first():
                        found = await self._next(self.source, digest=standing.digest)
                except Exception as error:
                    standing.answered.set_result(list(_problems(error)))
                    _, problems = await standing.heard(self._crew, before=before)
                    self._told("refused", why, before, began, problems)
                    return
                standing.answered.set_result([])
                is_put, problems = await standing.heard(self._crew, before=before)
                what: What = "refused"
                if is_put:
                    what = await self._put(found)
                else:
                    await self._let_go(found)
                self._told(what, why, before, began, () if is_put else problems)
        finally:
            self._standing_by = None
            standing.done.set()
            if not standing.answered.done():
                standing.answered.set_result(["the worker ends"])

    async def _hear(self, asked: Told) -> Told:
        standing = self._standing_by
        if standing is not None and not standing.word.done():
            standing.word.set_result((asked["put"], asked["problems"]))
            await standing.done.wait()
        elif standing is None and not asked["put"]:  # refused before anybody else was asked
            self._told("refused", asked["why"], self._revision, monotonic(), asked["problems"])
        return await self._serving({})

    async def _serving(self, asked: Told) -> Told:
        return {"revision": self._revision, "digest": self.taken.digest}

    async def _agree(self) -> None:
        """Serve what the others serve, where that is something else: they may have changed while this one started."""
        others = await self._crew.served()
        theirs = next((told["digest"] for _, told in sorted(others.items())), self.taken.digest)
        if theirs == self.taken.digest:
            return
        async with self._one_at_a_time, self.running.revisions.changing:
            for source in (self.source, self.last_good):
                try:
                    await self._put(await self._next(source, digest=theirs))
                    return
                except Exception as error:
                    _log.info("what the other workers serve is not what is there: %s", "; ".join(_problems(error)))
        _log.error("the other workers serve another revision: reload, or restart the gateway")

    async def revisions(self) -> dict[str, str | None]:
        """Which worker serves which revision; `None` for one that does not answer. Nothing where there is only one."""
        if self.crew is None:
            return {}
        found = dict.fromkeys(self.crew.others) | {
            index: str(told["revision"]) for index, told in (await self.crew.served()).items()
        }
        served = {self.crew.worker: self._revision, **found}
        return {str(index): served[index] for index in sorted(served)}

    def ask(self, why: Why) -> None:
        """The same for whoever does not wait for it."""
        self._begin(self.everywhere(None, why))

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def watch(self, every: float) -> None:
        """Reload whenever there is something else, once nobody has written to it for a whole interval.

        Of several workers one looks, for all.
        """
        if self.crew is None or self.crew.leads:
            self._begin(self._watched(every))

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
    def _revision(self) -> str:
        return self.running.service.published.snapshot.revision

    async def _reloaded(self, agree: Agree | None) -> tuple[What, tuple[str, ...]]:
        try:
            found = await self._next(self.source)
        except Exception as error:
            return "refused", _problems(error)
        try:
            if agree is not None:
                await agree(found.taken.digest)
            await asyncio.to_thread(found.taken.use)
        except Exception as error:
            await self._let_go(found)
            return "refused", _problems(error)
        return await self._put(found), ()

    async def _next(self, source: Source, *, digest: str | None = None) -> "_Next":
        """What may come into force. Raises whatever keeps it from that; with a digest, other files do."""
        environ = self.current.environ
        taken, ready = await asyncio.to_thread(prepared_from, source, self.running.settings, environ=environ)
        try:
            if digest not in (None, taken.digest):
                raise ReloadRefused(["the files are others than those that another worker read"], help="reload again")
            revision = None if self._is_same(ready) else await self._made(ready)
        except BaseException:
            taken.release()
            raise
        return _Next(taken, ready, revision)

    async def _put(self, found: "_Next") -> What:
        taken, ready, revision = found.taken, found.ready, found.revision
        is_same = revision is None or (
            revision.access.snapshot.revision == self._revision and ready.providers == self.current.providers
        )
        if revision is None or is_same:
            await self._taken_anew(taken)
            await self._let_go(found)
            return "unchanged"
        self.running.controlled.validity.until = taken.until
        self.running.revisions.put(revision)
        self.current, self.taken = ready, taken
        await self._noted()
        await self._kept()
        return "published"

    async def _let_go(self, found: "_Next") -> None:
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
        if self.crew is not None:
            await self._agree()

    async def _noted(self) -> None:
        controlled = self.running.controlled
        try:
            await controlled.store.note([controlled.auditor.happened("config-published")])
        except StoreUnavailable:
            _log.exception("the decision log does not say that another revision came into force")

    @property
    def _crew(self) -> Crew:
        assert self.crew is not None, "asked by another worker"  # noqa: S101 - set where there are several
        return self.crew

    def _told(self, what: What, why: Why, before: str, began: float, problems: Sequence[str]) -> Outcome:
        at = datetime.now(UTC)
        outcome = Outcome(what, why, self._revision, before, at, monotonic() - began, tuple(problems[:MOST_PROBLEMS]))
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


@dataclass(frozen=True, slots=True)
class _Next:
    """What may come into force; without a revision, it is what is served already."""

    taken: Taken
    ready: Prepared
    revision: Revision | None


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


def _problems(error: Exception) -> tuple[str, ...]:
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
