"""Calls that wait for answers which come with another request, and the sealed states that name them.

A state is the client's to carry and to tamper with. It holds nothing but a name and an end of life, under a seal that
also covers who may use it, in which catalogue, and for which request. It works once.
"""

import asyncio
import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_bytes, token_urlsafe
from typing import Any, Final

import orjson

from gateway.governance.principals import Principal
from gateway.serving.current import Question
from gateway.web.mcp.exchanges import Exchange, checked_answer
from gateway.web.mcp.protocol import INVALID_PARAMS, ProtocolError

WAITS: Final = 600.0
"""Seconds that a call waits for an answer."""
MOST_PARKED: Final = 1_000
MOST_PER_CALLER: Final = 32

_ASKABLE: Final = frozenset({"elicitation", "sampling", "roots"})
_SEAL: Final = 32
_VARYING: Final = frozenset({"_meta", "inputResponses", "requestState"})


class ModernExchange(Exchange):
    """Asks by ending the request: its answer says what is needed, and the call waits for the next one."""

    stays = False
    questions: Mapping[str, Question] | None = None
    _answers: asyncio.Future[Mapping[str, Any]] | None = None
    _turned: asyncio.Future[None] | None = None
    _asking: asyncio.Lock | None = None

    ahead: dict[str, Any] | None = None
    """Answers that came before anybody asked."""

    @property
    def can_be_asked(self) -> bool:
        """Whether the client declared anything that a call could ask it for."""
        return not _ASKABLE.isdisjoint(self.capabilities)

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        self.check(questions)
        if self._asking is None:
            self._asking = asyncio.Lock()
        async with self._asking:
            if self.ahead is not None and (answers := self._answered_ahead(questions, self.ahead)):
                return answers
            self.questions = questions
            self._answers = self.loop.create_future()
            self.turn()
            return await self._answers

    def _answered_ahead(self, questions: Mapping[str, Question], ahead: dict[str, Any]) -> dict[str, Any] | None:
        """Each of them once; those that are none are asked for."""
        if not questions.keys() <= ahead.keys():
            return None
        taken = {key: ahead.pop(key) for key in questions}
        try:
            return given_answers(questions, taken)
        except ProtocolError:
            return None

    def turn(self, *_: object) -> None:
        """The request can go on: the call is over, or it asks, or the client has gone."""
        turned = self._next_turn()
        if not turned.done():
            turned.set_result(None)

    async def turned(self) -> None:
        await self._next_turn()

    def _next_turn(self) -> "asyncio.Future[None]":
        if self._turned is None:
            self._turned = self.loop.create_future()
        return self._turned

    def answer(self, answers: Mapping[str, Any]) -> None:
        assert self._answers is not None, "answered before it asked"  # noqa: S101 - only parked calls are answered
        self.questions = None
        self._turned = None
        if not self._answers.done():
            self._answers.set_result(answers)


@dataclass(slots=True, eq=False)
class ParkedCall:
    exchange: ModernExchange
    task: asyncio.Task[bytes]
    owner: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None

    @property
    def unanswered(self) -> dict[str, Question]:
        questions = self.exchange.questions or {}
        return {key: question for key, question in questions.items() if key not in self.answers}

    def go_on(self) -> None:
        """Give the call its answers. It may be over already: nobody waits for ever."""
        self.exchange.answer(self.answers)
        self.answers = {}
        if self.task.done():
            self.exchange.turn()


class Parking:
    """`home` stands before every state, in the open, where several gateways serve: whose call it names."""

    def __init__(self, secret: bytes | None = None, *, waits: float = WAITS, home: str = "") -> None:
        self._secret = secret or token_bytes(32)
        self._home = f"{home}." if home else ""
        self._waits = waits
        self._parked: dict[str, ParkedCall] = {}

    def park(self, call: ParkedCall, bound: bytes, *, owner: str) -> str:
        """Keep a call that asks, and give the state that finds it again. Raises if too many wait already."""
        call.owner = owner
        mine = sum(1 for each in self._parked.values() if each.owner == call.owner)
        if len(self._parked) >= MOST_PARKED or mine >= MOST_PER_CALLER:
            call.task.cancel()
            raise ProtocolError(INVALID_PARAMS, "too many calls wait for answers already")
        name = token_urlsafe(18)
        call.timer = call.exchange.loop.call_later(self._waits, self._expire, name)
        call.exchange.reply = None
        self._parked[name] = call
        sealed = base64.urlsafe_b64encode(self._seal(name.encode(), bound) + name.encode()).decode()
        return f"{self._home}{sealed}"

    def resume(self, state: Any, bound: bytes, given: Any) -> ParkedCall:
        """The call that a state names, with the answers that were given; it is no longer parked.

        One error for everything that can be wrong with a state. Answers that are none leave the call where it is.
        """
        name = self._opened(state, bound) if isinstance(state, str) else None
        call = self._parked.get(name) if name is not None else None
        if call is None or name is None:
            raise invalid_state()
        call.answers |= given_answers(call.exchange.questions or {}, given)
        del self._parked[name]
        if call.timer is not None:
            call.timer.cancel()
        return call

    def close(self) -> None:
        for name in list(self._parked):
            self._expire(name)

    def _expire(self, name: str) -> None:
        if (call := self._parked.pop(name, None)) is not None:
            if call.timer is not None:
                call.timer.cancel()
            call.task.cancel()

    def _opened(self, state: str, bound: bytes) -> str | None:
        try:
            content = base64.b64decode(state.removeprefix(self._home).encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return None
        seal, name = content[:_SEAL], content[_SEAL:]
        # constant time: whoever tries seals learns nothing from how long it took
        return name.decode("latin-1") if hmac.compare_digest(seal, self._seal(name, bound)) else None

    def _seal(self, name: bytes, bound: bytes) -> bytes:
        return hmac.new(self._secret, name + b"\0" + bound, sha256).digest()


def bound_to(principal: Principal, catalogue: str, method: str, params: Mapping[str, Any]) -> bytes:
    """What a state is good for: one caller, one catalogue, one method with these parameters."""
    asked = {key: value for key, value in params.items() if key not in _VARYING}
    parts = [owner_of(principal), catalogue, method, asked]
    return sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).digest()


def owner_of(principal: Principal) -> str:
    return orjson.dumps([principal.tenant, principal.subject, sorted(principal.roles)]).decode()


def invalid_state() -> ProtocolError:
    return ProtocolError(INVALID_PARAMS, "the requestState is not valid here, or not any more")


def given_answers(questions: Mapping[str, Question], given: Any) -> dict[str, Any]:
    """The answers that were given. Unknown ones are ignored; malformed ones raise."""
    found = {} if given is None else given
    if not isinstance(found, dict):
        raise ProtocolError(INVALID_PARAMS, "inputResponses is an object")
    return {key: checked_answer(question, found[key]) for key, question in questions.items() if key in found}


def input_required(questions: Mapping[str, Question], state: str) -> bytes:
    requests = {key: {"method": each.method, "params": each.params} for key, each in questions.items()}
    return orjson.dumps({"resultType": "input_required", "inputRequests": requests, "requestState": state})
