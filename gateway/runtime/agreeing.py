"""Workers of one host that change revisions together: all of them are ready, or none of them changes.

One worker leads: it reads what is there, makes a revision of it, and has every other worker make one of the very same
files. Once all have one, all put theirs in force; if one cannot, all let theirs go. A worker that was not there begins
with what the others serve.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

from gateway.runtime.reloading import AnotherRevision, Next, Reloading, ReloadRefused, Why, problems_of
from gateway.web.edge import Receive, Scope, Send
from gateway.web.problems import json_response

INSIDE: Final = "/.gateway/reload/"
"""Where workers ask each other, over connections that prove themselves. No other listener serves it."""

LEADER: Final = 0

PREPARED_WITHIN: Final = 60.0
STANDS_BY: Final = 90.0
"""Seconds that a worker waits for the word of the one that leads; then it does what the others have done."""

_SOON: Final = 2.0
_WORD_WITHIN: Final = 15.0
_COMES_WITHIN: Final = 20.0
"""Seconds in which a worker that is being replaced comes back, and serves what the others serve."""
_LOOK_EVERY: Final = 0.1
_LARGEST: Final = 1 << 20
"""Bytes of a question."""
_log: Final = logging.getLogger(__name__)

Told = Mapping[str, Any]


class Ask(Protocol):
    """Asks other workers, all of them or one; whoever does not answer in time is left out."""

    async def __call__(
        self, path: str, *, within: float = _SOON, body: bytes | None = None, only: int | None = None
    ) -> Mapping[int, bytes]: ...


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of this host, seen from one of them."""

    worker: int
    others: tuple[int, ...]
    ask: Ask

    @property
    def leads(self) -> bool:
        return self.worker == LEADER

    async def asked(self, what: str, *, within: float = _SOON, only: int | None = None, **more: Any) -> dict[int, Told]:
        body = json.dumps(more).encode()
        answers = await self.ask(f"{INSIDE}{what}", within=within, body=body, only=only)
        return {index: json.loads(answer) for index, answer in answers.items()}

    async def led(self, **more: Any) -> Told | None:
        """What the one that leads made of it; `None` if it is not there, or if it is this one."""
        if self.leads:
            return None
        within = PREPARED_WITHIN + _WORD_WITHIN + _COMES_WITHIN + PREPARED_WITHIN
        return (await self.asked("lead", within=within, only=LEADER, **more)).get(LEADER)

    async def prepared(self, digest: str, why: str) -> list[str]:
        """Have all others make a revision of the same files; what keeps them from it. Who is not there does not."""
        answers = await self.asked("prepare", within=PREPARED_WITHIN, digest=digest, why=why)
        return [f"worker {index}: {each}" for index, told in sorted(answers.items()) for each in told["problems"]]

    async def told(self, *, digest: str | None, is_put: bool, problems: Iterable[str], why: str) -> None:
        """Give all others the word, about files that they have made a revision of, if they have."""
        await self.asked("word", within=_WORD_WITHIN, digest=digest, put=is_put, problems=list(problems), why=why)

    async def served(self) -> dict[int, Told]:
        """What each of the others serves, as far as they answer."""
        return await self.asked("served")

    async def agreed(self, revision: str) -> dict[int, str | None]:
        """The revision of each of the others, once it is this one everywhere, or nobody expects that any more."""
        found: dict[int, str | None] = dict.fromkeys(self.others)
        clock = asyncio.get_running_loop().time
        until = clock() + _COMES_WITHIN
        while True:
            found |= {index: str(told["revision"]) for index, told in (await self.served()).items()}
            if set(found.values()) <= {revision} or clock() >= until:
                return found
            await asyncio.sleep(_LOOK_EVERY)


@dataclass(slots=True)
class StandingBy:
    """A worker that is ready, and waits for the word."""

    digest: str
    answered: "asyncio.Future[list[str]]"
    word: "asyncio.Future[tuple[bool, list[str]]]"
    done: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def new(cls, digest: str) -> "StandingBy":
        loop = asyncio.get_running_loop()
        return cls(digest, loop.create_future(), loop.create_future())

    async def heard(self, crew: Crew, *, before: str, within: float = STANDS_BY) -> tuple[bool, list[str]]:
        """Whether to put it in force, and why not. Without a word, whatever another one has done."""
        try:
            async with asyncio.timeout(within):
                return await asyncio.shield(self.word)
        except TimeoutError:
            others = (await crew.served()).values()
            is_put = any(told["digest"] == self.digest and told["revision"] != before for told in others)
            return is_put, ["the worker that led the reload is gone"]


Answer = Callable[[Told], Awaitable[Told]]


class Workmates:
    """The workers of this host, as one of them sees them: it implements `gateway.runtime.reloading.Together`."""

    def __init__(self, reloading: Reloading, crew: Crew) -> None:
        self._reloading = reloading
        self._crew = crew
        self._standing_by: StandingBy | None = None

    @property
    def leads(self) -> bool:
        return self._crew.leads

    async def reload(self, expected: str | None, why: Why) -> dict[str, Any]:
        """In every worker, or in none; what became of it, and which worker serves which revision then."""
        led = await self._crew.led(expected=expected, why=why)
        if led is None:
            return await self._lead(expected, why)
        if led.get("code") == AnotherRevision.code:
            raise AnotherRevision(help="look at what is served now, then ask again")
        return dict(led)

    async def revisions(self) -> dict[str, str | None]:
        """Which worker serves which revision; `None` for one that does not answer."""
        found = {index: str(told["revision"]) for index, told in (await self._crew.served()).items()}
        return self._of_all({**dict.fromkeys(self._crew.others), **found})

    async def agree(self) -> None:
        """Serve what the others serve, where that is something else: they may have changed while this one started."""
        own = self._reloading
        others = await self._crew.served()
        theirs = next((told["digest"] for _, told in sorted(others.items())), own.taken.digest)
        if theirs == own.taken.digest:
            return
        async with own.changing():
            for source in (own.source, own.last_good):
                try:
                    await own.put(await own.next(source, digest=theirs))
                    return
                except Exception as error:
                    _log.info("what the other workers serve is not what is there: %s", "; ".join(problems_of(error)))
        _log.error("the other workers serve another revision: reload, or restart the gateway")

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
            if len(body) > _LARGEST:
                await json_response({}, status=413)(scope, receive, send)
                return
        answer = answers.get(scope["path"].removeprefix(INSIDE))
        told = {} if answer is None else await answer(json.loads(body or b"{}"))
        await json_response(told, status=404 if answer is None else 200)(scope, receive, send)

    # --- leading ---

    async def _lead(self, expected: str | None, why: Why) -> dict[str, Any]:
        digests: list[str] = []

        async def agree(digest: str) -> None:
            digests.append(digest)
            if problems := await self._crew.prepared(digest, why):
                raise ReloadRefused(problems)

        outcome = await self._reloading.reload(why, expected=expected, agree=agree)
        is_put = outcome.what != "refused"
        digest = digests[0] if digests else None
        await self._crew.told(digest=digest, is_put=is_put, problems=outcome.problems, why=why)
        served = self._of_all(await self._crew.agreed(outcome.revision)) if is_put else await self.revisions()
        apart = [
            f"worker {index} {'does not answer' if found is None else f'serves revision {found[:12]}'}"
            for index, found in served.items()
            if found != outcome.revision
        ]
        return {**outcome.as_data(), "problems": [*outcome.problems, *apart], "workers": served}

    async def _led(self, asked: Told) -> Told:
        try:
            return await self._lead(asked["expected"], asked["why"])
        except AnotherRevision as error:
            return {"code": error.code}

    # --- being led ---

    async def _prepare(self, asked: Told) -> Told:
        """Whoever led before is gone, or given up, if another one leads now."""
        while (earlier := self._standing_by) is not None:
            if not earlier.word.done():
                earlier.word.set_result((False, ["another reload began"]))
            await earlier.done.wait()
        standing = self._standing_by = StandingBy.new(asked["digest"])
        self._reloading.begin_task(self._stand_by(standing, asked["why"]))
        return {"problems": await standing.answered}

    async def _stand_by(self, standing: StandingBy, why: Why) -> None:
        """Be ready to serve the same as the worker that leads, until it says whether to."""
        own = self._reloading
        try:
            async with own.changing():
                before, began = own.revision, monotonic()
                found: Next | None = None
                try:
                    found = await own.next(own.source, digest=standing.digest)
                except Exception as error:
                    standing.answered.set_result(list(problems_of(error)))
                else:
                    standing.answered.set_result([])
                is_put, problems = await standing.heard(self._crew, before=before)
                if found is not None and is_put:
                    own.told(await own.put(found), why, before, began, ())
                    return
                if found is not None:
                    await own.let_go(found)
                own.told("refused", why, before, began, problems)
        finally:
            self._standing_by = None
            standing.done.set()
            if not standing.answered.done():
                standing.answered.set_result(["the worker ends"])

    async def _hear(self, asked: Told) -> Told:
        standing = self._standing_by
        if standing is not None and standing.digest == asked["digest"]:
            if not standing.word.done():
                standing.word.set_result((asked["put"], asked["problems"]))
            await standing.done.wait()
        elif not asked["put"]:  # refused before anybody else was asked
            own = self._reloading
            own.told("refused", asked["why"], own.revision, monotonic(), asked["problems"])
        return await self._serving({})

    async def _serving(self, asked: Told) -> Told:
        return {"revision": self._reloading.revision, "digest": self._reloading.taken.digest}

    def _of_all(self, others: Mapping[int, str | None]) -> dict[str, str | None]:
        served = {self._crew.worker: self._reloading.revision, **others}
        return {str(index): served[index] for index in sorted(served)}
