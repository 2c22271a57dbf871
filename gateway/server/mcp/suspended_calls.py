"""Calls without a session that need answers from their client, and the signed states that identify them.

Questions of a running call suspend it until another request has the answers. The client returns the state and could
tamper with it, so it holds only a name, under a signature that also covers the caller, the catalogue and the request.
It is valid once and for a limited time.

If a caller has to confirm a call, no call waits: the question is sent with a signed state, and any process that gets
the answer with that state makes the call. The state holds the turn, the action, the deadline and the idempotency key
of the answer, so the call is made once, however often the answer is sent.
"""

import asyncio
import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_bytes, token_urlsafe
from typing import Any, Final

import orjson

from gateway.engine import CONFIRM, CallOutcome, HoldPolicy, Service
from gateway.errors import UnknownTurn
from gateway.mcp import INVALID_PARAMS, ProtocolError
from gateway.model import Principal, Question, now
from gateway.server.mcp.caller_channel import McpCallerChannel, validate_answer

SUSPEND_SECONDS: Final = 600.0
"""Seconds that a call waits for an answer."""
MAX_SUSPENDED: Final = 1_000
MAX_PER_CALLER: Final = 32

_ANSWERABLE: Final = frozenset({"elicitation", "sampling", "roots"})
_SEAL: Final = 32
_VARYING: Final = frozenset({"_meta", "inputResponses", "requestState"})


class StatelessCallerChannel(McpCallerChannel):
    """Asks by ending the request with the questions; the call waits for the next request."""

    waits_for_answer = False
    questions: Mapping[str, Question] | None = None
    _answers: asyncio.Future[Mapping[str, Any]] | None = None
    _ready: asyncio.Future[None] | None = None
    _ask_lock: asyncio.Lock | None = None

    ahead: dict[str, Any] | None = None
    """Answers that the client sent before the call asked."""

    @property
    def can_be_asked(self) -> bool:
        """Whether the client declared a capability that lets calls ask it."""
        return not _ANSWERABLE.isdisjoint(self.capabilities)

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        self.check_capabilities(questions)
        if self._ask_lock is None:
            self._ask_lock = asyncio.Lock()
        async with self._ask_lock:
            if self.ahead is not None and (answers := self._take_ahead(questions, self.ahead)):
                return answers
            self.questions = questions
            self._answers = self.loop.create_future()
            self.wake()
            return await self._answers

    def _take_ahead(self, questions: Mapping[str, Question], ahead: dict[str, Any]) -> dict[str, Any] | None:
        """Use up and return the answers sent ahead; `None` if one is missing or malformed."""
        if not questions.keys() <= ahead.keys():
            return None
        taken = {key: ahead.pop(key) for key in questions}
        try:
            return parse_answers(questions, taken)
        except ProtocolError:
            return None

    def wake(self, *_: object) -> None:
        """Wake the request: the call has ended, or asks, or the client has disconnected."""
        ready = self._get_ready()
        if not ready.done():
            ready.set_result(None)

    async def wait_until_ready(self) -> None:
        await self._get_ready()

    def _get_ready(self) -> "asyncio.Future[None]":
        if self._ready is None:
            self._ready = self.loop.create_future()
        return self._ready

    def answer(self, answers: Mapping[str, Any]) -> None:
        assert self._answers is not None, "answered before it asked"  # noqa: S101 - only suspended calls are answered
        self.questions = None
        self._ready = None
        if not self._answers.done():
            self._answers.set_result(answers)


@dataclass(slots=True, eq=False)
class SuspendedCall:
    exchange: StatelessCallerChannel
    task: asyncio.Task[bytes]
    owner: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None

    @property
    def pending_questions(self) -> dict[str, Question]:
        questions = self.exchange.questions or {}
        return {key: question for key, question in questions.items() if key not in self.answers}

    def resume(self) -> None:
        """Give the call its answers. It may have ended already: calls do not wait forever."""
        self.exchange.answer(self.answers)
        self.answers = {}
        if self.task.done():
            self.exchange.wake()


class SuspendedCalls:
    """The suspended calls of a process. `home` is the unsigned prefix of states that names the gateway, if several."""

    def __init__(self, secret: bytes | None = None, *, waits: float = SUSPEND_SECONDS, home: str = "") -> None:
        self._secret = secret or token_bytes(32)
        self._home = f"{home}." if home else ""
        self._waits = waits
        self._suspended: dict[str, SuspendedCall] = {}

    def suspend(self, call: SuspendedCall, bound: bytes, *, owner: str) -> str:
        """Store a call that asks, and return its state. Raises `ProtocolError` if too many wait already."""
        call.owner = owner
        mine = sum(1 for each in self._suspended.values() if each.owner == call.owner)
        if len(self._suspended) >= MAX_SUSPENDED or mine >= MAX_PER_CALLER:
            call.task.cancel()
            raise ProtocolError(INVALID_PARAMS, "too many calls wait for answers already")
        name = token_urlsafe(18)
        call.timer = call.exchange.loop.call_later(self._waits, self._expire, name)
        call.exchange.reply = None
        self._suspended[name] = call
        sealed = base64.urlsafe_b64encode(self._seal(name.encode(), bound) + name.encode()).decode()
        return f"{self._home}{sealed}"

    def resume(self, state: Any, bound: bytes, given: Any) -> SuspendedCall:
        """Remove and return the call of a state, with the given answers.

        Every invalid state raises the same error. After malformed answers the call stays suspended.
        """
        name = self._open_state(state, bound) if isinstance(state, str) else None
        call = self._suspended.get(name) if name is not None else None
        if call is None or name is None:
            raise invalid_state()
        call.answers |= parse_answers(call.exchange.questions or {}, given)
        del self._suspended[name]
        if call.timer is not None:
            call.timer.cancel()
        return call

    def close(self) -> None:
        for name in list(self._suspended):
            self._expire(name)

    def _expire(self, name: str) -> None:
        if (call := self._suspended.pop(name, None)) is not None:
            if call.timer is not None:
                call.timer.cancel()
            call.task.cancel()

    def _open_state(self, state: str, bound: bytes) -> str | None:
        try:
            content = base64.b64decode(state.removeprefix(self._home).encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return None
        seal, name = content[:_SEAL], content[_SEAL:]
        # constant time: the duration reveals nothing about the signature
        return name.decode("latin-1") if hmac.compare_digest(seal, self._seal(name, bound)) else None

    def _seal(self, name: bytes, bound: bytes) -> bytes:
        return hmac.new(self._secret, name + b"\0" + bound, sha256).digest()


def build_state_binding(principal: Principal, catalogue: str, method: str, params: Mapping[str, Any]) -> bytes:
    """Return what a state is bound to: one caller, one catalogue, one method with these parameters."""
    fixed = {key: value for key, value in params.items() if key not in _VARYING}
    parts = [get_owner(principal), catalogue, method, fixed]
    return sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).digest()


def get_owner(principal: Principal) -> str:
    return orjson.dumps([principal.tenant, principal.subject, sorted(principal.roles)]).decode()


def invalid_state() -> ProtocolError:
    return ProtocolError(INVALID_PARAMS, "the requestState is not valid here, or has expired")


def parse_answers(questions: Mapping[str, Question], given: Any) -> dict[str, Any]:
    """Return the given answers. Unknown ones are ignored. Raises `ProtocolError` for malformed ones."""
    found = {} if given is None else given
    if not isinstance(found, dict):
        raise ProtocolError(INVALID_PARAMS, "inputResponses must be an object")
    return {key: validate_answer(question, found[key]) for key, question in questions.items() if key in found}


def build_input_required(questions: Mapping[str, Question], state: str) -> bytes:
    requests = {key: {"method": each.method, "params": each.params} for key, each in questions.items()}
    return orjson.dumps({"resultType": "input_required", "inputRequests": requests, "requestState": state})


_MARK: Final = "confirm."
_MAX_STATE: Final = 4_096
_ASKED: Final = b"asked"
_ELICITED: Final = Question.form("", {})


@dataclass(frozen=True, slots=True)
class ConfirmationResult:
    """A caller's answer: the turn to continue in, the idempotency key of the call, and its hold policy."""

    turn_id: str
    key: str
    holding: HoldPolicy


class Confirmations:
    """Confirmations of calls in one catalogue."""

    def __init__(self, service: Service, catalogue: str) -> None:
        self._service = service
        self._catalogue = catalogue

    def create_question(self, settled: CallOutcome, bound: bytes) -> bytes:
        """Return the question of a call that has to be confirmed, with the state that the answer must repeat."""
        pending = settled.unconfirmed
        assert pending is not None, "the call needs no confirmation"  # noqa: S101 - checked by the caller
        parts = [settled.turn.id, pending.digest, int(pending.until.timestamp()), token_urlsafe(18)]
        content = orjson.dumps(parts)
        seal = sign_question(settled.turn.turn_secret, bound + content)
        state = _MARK + base64.urlsafe_b64encode(seal + content).decode()
        return build_input_required({CONFIRM: pending.question}, state)

    async def read_answer(
        self, state: str, bound: bytes, given: Any, *, principal: Principal, holding: HoldPolicy
    ) -> ConfirmationResult:
        """Return the answer. Every invalid state raises the same error; a malformed answer raises another.

        Without an answer, the call is made as if the caller had not been asked, and asks again.
        """
        seal, content = _open_state(state)
        turn_id, digest, until, nonce = _parts(content)
        try:
            turn = await self._service.turns.find(principal, turn_id, catalogue=self._catalogue)
        except UnknownTurn:
            raise invalid_state() from None
        # constant time: the duration reveals nothing about the signature
        if not hmac.compare_digest(seal, sign_question(turn.turn_secret, bound + content)):
            raise invalid_state()
        if now() >= datetime.fromtimestamp(until, UTC):
            raise invalid_state()
        return ConfirmationResult(turn_id, f"confirm-{nonce}", _with_answer(holding, digest, given))


def is_confirmation_state(state: Any) -> bool:
    return isinstance(state, str) and state.startswith(_MARK)


def _with_answer(holding: HoldPolicy, digest: str, given: Any) -> HoldPolicy:
    if given is not None and not isinstance(given, Mapping):
        raise ProtocolError(INVALID_PARAMS, "inputResponses must be an object")
    if not given or CONFIRM not in given:
        return holding
    answer = validate_answer(_ELICITED, given[CONFIRM])
    return replace(holding, answer=answer["action"], about=digest)


def _open_state(state: str) -> tuple[bytes, bytes]:
    if len(state) > _MAX_STATE:
        raise invalid_state()
    try:
        opened = base64.b64decode(state.removeprefix(_MARK).encode("ascii"), altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise invalid_state() from None
    return opened[:_SEAL], opened[_SEAL:]


def _parts(content: bytes) -> tuple[str, str, int, str]:
    """Return the parts of a state. Raises `ProtocolError` unless they have the right types."""
    try:
        turn_id, digest, until, nonce = orjson.loads(content)
    except (orjson.JSONDecodeError, ValueError, TypeError):
        raise invalid_state() from None
    if not all(isinstance(each, str) for each in (turn_id, digest, nonce)) or type(until) is not int:
        raise invalid_state()
    return turn_id, digest, until, nonce


def sign_question(secret: bytes, content: bytes) -> bytes:
    """Sign the state that a client carries from a question to its answer."""
    return hmac.new(secret, _ASKED + b"\0" + content, sha256).digest()
