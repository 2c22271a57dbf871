"""Workers of one host that change revisions together: all of them are ready, or none of them changes.

One worker leads: it reads what is there, makes a revision of it, and has every other worker make one of the very same
files. Once all have one, all put theirs in force; if one cannot, all let theirs go. A worker that was not there begins
with what the others serve.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

INSIDE: Final = "/.gateway/reload/"
"""Where workers ask each other. Nobody else reaches the socket that it is served on."""

LEADER: Final = 0

PREPARED_WITHIN: Final = 60.0
STANDS_BY: Final = 90.0
"""Seconds that a worker waits for the word of the one that leads; then it does what the others have done."""

_SOON: Final = 2.0
_WORD_WITHIN: Final = 15.0
_COMES_WITHIN: Final = 20.0
"""Seconds in which a worker that is being replaced comes back, and serves what the others serve."""
_LOOK_EVERY: Final = 0.1

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

    async def told(self, *, is_put: bool, problems: Iterable[str], why: str) -> None:
        """Give all others the word."""
        await self.asked("word", within=_WORD_WITHIN, put=is_put, problems=list(problems), why=why)

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

    async def heard(self, crew: Crew, *, before: str) -> tuple[bool, list[str]]:
        """Whether to put it in force, and why not. Without a word, whatever another one has done."""
        try:
            async with asyncio.timeout(STANDS_BY):
                return await asyncio.shield(self.word)
        except TimeoutError:
            others = (await crew.served()).values()
            is_put = any(told["digest"] == self.digest and told["revision"] != before for told in others)
            return is_put, ["the worker that led the reload is gone"]


Answer = Callable[[Told], Awaitable[Told]]


async def answered(path: str, body: bytes, answers: Mapping[str, Answer]) -> Told | None:
    """What is answered to another worker; `None` if it is nothing that is asked among workers."""
    answer = answers.get(path.removeprefix(INSIDE))
    return None if answer is None else await answer(json.loads(body or b"{}"))
