"""Reload in all workers of a host at once, or in none.

One worker leads: it reads the project, builds a revision, and asks every other worker to build one from the same files.
Once all have one, all activate theirs; if one fails, all discard theirs. A worker that starts later serves the revision
of the others.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

from gateway.app.revisions.reload import (
    PendingRevision,
    ReloadCause,
    Reloader,
    ReloadRefused,
    RevisionMismatch,
    to_problems,
)
from gateway.server import Receive, Scope, Send, json_response

WORKERS_PATH: Final = "/.gateway/reload/"
"""Path of messages between workers, over authenticated connections. No other listener serves it."""

LEADER: Final = 0

PREPARED_WITHIN: Final = 60.0
STANDS_BY: Final = 90.0
"""Seconds that a worker waits for the decision of the leader; then it follows the other workers."""

_SOON: Final = 2.0
_WORD_WITHIN: Final = 15.0
_COMES_WITHIN: Final = 20.0
"""Seconds in which a replaced worker starts and serves the revision of the others."""
_LOOK_EVERY: Final = 0.1
_LARGEST: Final = 1 << 20
"""Bytes of the largest message."""
_log: Final = logging.getLogger(__name__)

WorkerMessage = Mapping[str, Any]


class AskWorkers(Protocol):
    """Sends a message to all other workers or to one; a worker that does not answer in time is left out."""

    async def __call__(
        self, path: str, *, within: float = _SOON, body: bytes | None = None, only: int | None = None
    ) -> Mapping[int, bytes]: ...


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """The workers of this host, seen from one of them."""

    worker: int
    others: tuple[int, ...]
    ask: AskWorkers

    @property
    def leads(self) -> bool:
        return self.worker == LEADER

    async def ask_json(
        self, what: str, *, within: float = _SOON, only: int | None = None, **more: Any
    ) -> dict[int, WorkerMessage]:
        body = json.dumps(more).encode()
        answers = await self.ask(f"{WORKERS_PATH}{what}", within=within, body=body, only=only)
        return {index: json.loads(answer) for index, answer in answers.items()}

    async def ask_leader(self, **more: Any) -> WorkerMessage | None:
        """Let the leader reload, and return its outcome; `None` if it does not answer, or is this worker."""
        if self.leads:
            return None
        within = PREPARED_WITHIN + _WORD_WITHIN + _COMES_WITHIN + PREPARED_WITHIN
        return (await self.ask_json("lead", within=within, only=LEADER, **more)).get(LEADER)

    async def prepare(self, digest: str, why: str) -> list[str]:
        """Let all others build a revision of the same files, and return their problems. Absent workers have none."""
        answers = await self.ask_json("prepare", within=PREPARED_WITHIN, digest=digest, why=why)
        return [f"worker {index}: {each}" for index, answer in sorted(answers.items()) for each in answer["problems"]]

    async def commit(self, *, digest: str | None, is_put: bool, problems: Iterable[str], why: str) -> None:
        """Send the decision to all others: activate or discard the revision of these files."""
        await self.ask_json("word", within=_WORD_WITHIN, digest=digest, put=is_put, problems=list(problems), why=why)

    async def get_revisions(self) -> dict[int, WorkerMessage]:
        """Return the served revision of each other worker that answers."""
        return await self.ask_json("served")

    async def wait_agreement(self, revision: str) -> dict[int, str | None]:
        """Wait until all others serve this revision or time is up, and return the revision of each."""
        found: dict[int, str | None] = dict.fromkeys(self.others)
        clock = asyncio.get_running_loop().time
        until = clock() + _COMES_WITHIN
        while True:
            found |= {index: str(each["revision"]) for index, each in (await self.get_revisions()).items()}
            if set(found.values()) <= {revision} or clock() >= until:
                return found
            await asyncio.sleep(_LOOK_EVERY)


@dataclass(slots=True)
class PreparedReload:
    """A prepared reload in a worker that waits for the decision of the leader."""

    digest: str
    answered: "asyncio.Future[list[str]]"
    word: "asyncio.Future[tuple[bool, list[str]]]"
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def new(cls, digest: str) -> "PreparedReload":
        loop = asyncio.get_running_loop()
        return cls(digest, loop.create_future(), loop.create_future())

    async def wait_decision(
        self, crew: WorkerGroup, *, before: str, within: float = STANDS_BY
    ) -> tuple[bool, list[str]]:
        """Return whether to activate the revision, and why not. Without a decision, follow the other workers."""
        try:
            async with asyncio.timeout(within):
                return await asyncio.shield(self.word)
        except TimeoutError:
            others = (await crew.get_revisions()).values()
            is_put = any(each["digest"] == self.digest and each["revision"] != before for each in others)
            return is_put, ["the worker that led the reload is gone"]


Answer = Callable[[WorkerMessage], Awaitable[WorkerMessage]]


class ReloadConsensus:
    """Coordinates reloads of this worker with the others; a `gateway.app.revisions.reload.ReloadCoordinator`."""

    def __init__(self, reloading: Reloader, crew: WorkerGroup) -> None:
        self._reloading = reloading
        self._crew = crew
        self._standing_by: PreparedReload | None = None

    @property
    def leads(self) -> bool:
        return self._crew.leads

    async def reload(self, expected: str | None, why: ReloadCause) -> dict[str, Any]:
        """Reload in every worker or in none; return the outcome and the revision of each worker."""
        outcome = await self._crew.ask_leader(expected=expected, why=why)
        if outcome is None:
            return await self._lead(expected, why)
        if outcome.get("code") == RevisionMismatch.code:
            raise RevisionMismatch(help="look at the served revision, then try again")
        return dict(outcome)

    async def revisions(self) -> dict[str, str | None]:
        """Return the revision of each worker; `None` for one that does not answer."""
        found = {index: str(each["revision"]) for index, each in (await self._crew.get_revisions()).items()}
        return self._with_own({**dict.fromkeys(self._crew.others), **found})

    async def catch_up(self) -> None:
        """Serve the revision of the others, which may have reloaded while this worker started."""
        own = self._reloading
        others = await self._crew.get_revisions()
        theirs = next((each["digest"] for _, each in sorted(others.items())), own.taken.digest)
        if theirs == own.taken.digest:
            return
        async with own.lock():
            for source in (own.source, own.last_good):
                try:
                    await own.activate(await own.prepare(source, digest=theirs))
                    return
                except Exception as error:
                    _log.info("the revision of the other workers cannot be loaded: %s", "; ".join(to_problems(error)))
        _log.error("the other workers serve another revision: reload, or restart the gateway")

    async def handle_internal(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a message of another worker."""
        answers: Mapping[str, Answer] = {
            "lead": self._on_lead,
            "prepare": self._on_prepare,
            "word": self._on_decision,
            "served": self._on_served,
        }
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if len(body) > _LARGEST:
                await json_response({}, status=413)(scope, receive, send)
                return
        answer = answers.get(scope["path"].removeprefix(WORKERS_PATH))
        content = {} if answer is None else await answer(json.loads(body or b"{}"))
        await json_response(content, status=404 if answer is None else 200)(scope, receive, send)

    # --- as the leader ---

    async def _lead(self, expected: str | None, why: ReloadCause) -> dict[str, Any]:
        digests: list[str] = []

        async def agree(digest: str) -> None:
            digests.append(digest)
            if problems := await self._crew.prepare(digest, why):
                raise ReloadRefused(problems)

        outcome = await self._reloading.reload(why, expected=expected, agree=agree)
        is_put = outcome.what != "refused"
        digest = digests[0] if digests else None
        await self._crew.commit(digest=digest, is_put=is_put, problems=outcome.problems, why=why)
        served = self._with_own(await self._crew.wait_agreement(outcome.revision)) if is_put else await self.revisions()
        others = [
            f"worker {index} {'does not answer' if found is None else f'serves revision {found[:12]}'}"
            for index, found in served.items()
            if found != outcome.revision
        ]
        return {**outcome.to_dict(), "problems": [*outcome.problems, *others], "workers": served}

    async def _on_lead(self, message: WorkerMessage) -> WorkerMessage:
        try:
            return await self._lead(message["expected"], message["why"])
        except RevisionMismatch as error:
            return {"code": error.code}

    # --- as a follower ---

    async def _on_prepare(self, message: WorkerMessage) -> WorkerMessage:
        """Prepare a reload, after ending an earlier one: its leader is gone or has given up."""
        while (earlier := self._standing_by) is not None:
            if not earlier.word.done():
                earlier.word.set_result((False, ["another reload began"]))
            await earlier.done.wait()
        standing = self._standing_by = PreparedReload.new(message["digest"])
        self._reloading.begin_task(self._prepare_and_wait(standing, message["why"]))
        return {"problems": await standing.answered}

    async def _prepare_and_wait(self, standing: PreparedReload, why: ReloadCause) -> None:
        """Build the revision of the leader, then activate or discard it as the leader decides."""
        own = self._reloading
        try:
            async with own.lock():
                before, began = own.revision, monotonic()
                found: PendingRevision | None = None
                try:
                    found = await own.prepare(own.source, digest=standing.digest)
                except Exception as error:
                    standing.answered.set_result(list(to_problems(error)))
                else:
                    standing.answered.set_result([])
                is_put, problems = await standing.wait_decision(self._crew, before=before)
                if found is not None and is_put:
                    own.report(await own.activate(found), why, before, began, ())
                    return
                if found is not None:
                    await own.discard(found)
                own.report("refused", why, before, began, problems)
        finally:
            self._standing_by = None
            standing.done.set()
            if not standing.answered.done():
                standing.answered.set_result(["the worker ends"])

    async def _on_decision(self, message: WorkerMessage) -> WorkerMessage:
        standing = self._standing_by
        if standing is not None and standing.digest == message["digest"]:
            if not standing.word.done():
                standing.word.set_result((message["put"], message["problems"]))
            await standing.done.wait()
        elif not message["put"]:  # the leader refused before it asked the others
            own = self._reloading
            own.report("refused", message["why"], own.revision, monotonic(), message["problems"])
        return await self._on_served({})

    async def _on_served(self, message: WorkerMessage) -> WorkerMessage:
        return {"revision": self._reloading.revision, "digest": self._reloading.taken.digest}

    def _with_own(self, others: Mapping[int, str | None]) -> dict[str, str | None]:
        served = {self._crew.worker: self._reloading.revision, **others}
        return {str(index): served[index] for index in sorted(served)}
