"""The call that is being served: who makes it, under which record, and what was decided about it on the way.

It travels with the task, so that a generated handler finds it whatever stands between the wire and the handler.
"""

from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from gateway.errors import Refused, ToolDownstreamError, message_of
from gateway.governance.approvals import ApprovalRecord
from gateway.governance.memory import TurnMemory
from gateway.governance.outcomes import HeldKey
from gateway.governance.principals import Principal
from gateway.governance.records import StoredCall
from gateway.governance.rules import Decision
from gateway.serving.course import Course, Fault, fault_of, refuses_arguments
from gateway.serving.relayed import Aside
from gateway.snapshot import DeclaredTool

if TYPE_CHECKING:
    from gateway.serving.observing import SeenCall
    from gateway.serving.turns import Turn

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
Answer = Literal["accept", "decline", "cancel"]
AskMethod = Literal["elicitation/create", "sampling/createMessage", "roots/list"]


@dataclass(frozen=True, slots=True)
class Question:
    """Something only whoever calls can answer, in the words of MCP."""

    method: AskMethod
    params: Mapping[str, Any]

    @classmethod
    def form(cls, message: str, schema: Mapping[str, Any]) -> "Question":
        """A form for the person in front of the client; `schema` is a flat object of scalars."""
        return cls("elicitation/create", {"message": message, "requestedSchema": schema})

    @classmethod
    def url(cls, message: str, url: str, *, id: str) -> "Question":
        """Sends the person to a page: for what must not pass through the client."""
        return cls("elicitation/create", {"mode": "url", "message": message, "url": url, "elicitationId": id})

    @classmethod
    def sample(cls, messages: Sequence[Mapping[str, Any]], *, max_tokens: int, **more: Any) -> "Question":
        """Has the client's model continue a conversation."""
        return cls("sampling/createMessage", {"messages": list(messages), "maxTokens": max_tokens, **more})

    @classmethod
    def roots(cls) -> "Question":
        """Which folders the client works on."""
        return cls("roots/list", {})


class Client(Protocol):
    """Whoever made a call, as long as it runs. A wire gives it to the call; its methods run in `loop` alone.

    `stays` if it is there until it answers; else it comes back with its answer, maybe to another process.
    """

    @property
    def loop(self) -> AbstractEventLoop: ...

    @property
    def stays(self) -> bool: ...

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What it says that it can be asked, in the words of MCP."""
        ...

    @property
    def meta(self) -> Mapping[str, Any]:
        """What else came along with the request: none of it is looked at here."""
        ...

    @property
    def wants_progress(self) -> bool: ...

    @property
    def log_level(self) -> str | None:
        """The least serious messages that it wants to hear."""
        ...

    def lacks(self, needed: Mapping[str, Any]) -> None:
        """The call could not go on without these capabilities; a client that can be told so is."""
        ...

    def progress(self, progress: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: LogLevel, data: Any, logger: str | None) -> None: ...

    def can_answer(self, question: Question) -> bool: ...

    async def ask(self, questions: Mapping[str, Question]) -> Mapping[str, Any]:
        """One answer for each. Raises `CallerCannotAnswer` for what the client did not say it can do."""
        ...


@dataclass(frozen=True, slots=True)
class Holding:
    """How a call is held, as its wire has it. `waits`: it waits for people for as long as the rule says.

    `approvals` are those that an earlier call of the same kind was told to wait for: this one picks them up. `answer`
    is what the caller said when it was asked to confirm the action of the digest `about`.
    """

    waits: bool = True
    approvals: tuple[str, ...] = ()
    answer: Answer | None = None
    about: str | None = None

    def has_confirmed(self, digest: str) -> bool:
        return self.answer == "accept" and self.about == digest


ORDINARY: Final = Holding()

NOT_WAITING: Final = Holding(waits=False)
"""For requests that are answered at once, with what they wait for."""


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """What a caller is to be asked about its call before it runs. `digest` is that of the action, `until` the end."""

    question: Question
    digest: str
    until: datetime


@dataclass(slots=True)
class ServedCall:
    """One call on its way. The decision fields are filled in by the handler."""

    id: str
    tool: str
    args: dict[str, Any]
    principal: Principal
    catalogue: str
    revision: str
    idempotency_key: str | None = None
    client: Client | None = None
    turn: "Turn | None" = None
    checksum: str = ""
    args_text: str | None = None
    """The arguments as exact canonical JSON."""
    holding: Holding = ORDINARY
    given: dict[str, Any] | str | None = None
    """The arguments as they came."""
    exact: str | None = None
    """The exact digest of tool and arguments, where it is not the checksum."""
    declared: DeclaredTool | None = None
    """What it calls; none for a query tool."""
    target: StoredCall | None = None
    """What a query is about, if that is of another turn."""
    decision: Decision | None = None
    reason: str = ""
    """One of a few words for what was decided."""
    because: str | None = None
    rules: tuple[str, ...] = ()
    position: str | None = None
    observed: tuple[str, ...] = ()
    """Rules that only observe and would have decided otherwise."""
    approvals: Sequence[ApprovalRecord] = ()
    pending: Mapping[str, Any] | None = None
    """What a program is told if the call waits for people."""
    unconfirmed: Unconfirmed | None = None
    """What the caller has to answer first."""
    limited: Mapping[str, Any] | None = None
    """What a program is told if a rate or a quota stopped the call."""
    aside: Aside | None = None
    """What another server said beside its result."""
    identity: str | None = None
    definition: str | None = None
    error: str | None = None
    """The code of what went wrong."""
    is_started: bool = False
    """Whether a start record is durable: from then on the outcome is unknown until it settles."""
    is_refused: bool = False
    """Whether its refusal is written, or about to be: it is counted once."""
    is_cancelled: bool = False
    """Whether its caller went away before it ended."""
    held_key: HeldKey | None = None
    """Its idempotency key, once it is the call's own."""
    is_unwritten: bool = False
    """Whether its tool ran and its outcome could not be written: the store writes it when it recovers."""
    is_unknown: bool = False
    """Whether it is on record that nobody saw its outcome."""
    seen: "SeenCall | None" = None
    """Whoever observes it."""
    stored: StoredCall | None = None
    """What became durable of it, as far as somebody observes."""
    is_logged: bool = False
    """Whether there is an entry about it for the decision log."""
    sightings: Mapping[str, int] | None = None
    """When its caller saw which flags last, if a rule asks for that."""
    charge: Callable[[int], Awaitable[None]] | None = None
    """Counts the bytes of its result, if a budget of its caller does."""
    course: Course = field(default_factory=Course)
    """How far it has come."""
    fault: Fault | None = None
    """What stopped it, if something did."""

    own_memory: TurnMemory | None = None
    """Of a request that is made in no turn."""

    @property
    def memory(self) -> TurnMemory:
        if self.turn is not None:
            return self.turn.memory
        if self.own_memory is None:
            self.own_memory = TurnMemory()
        return self.own_memory

    @property
    def fingerprint(self) -> str:
        """Tells the call from others of its tool, exactly. Empty for arguments that cannot be hashed."""
        return self.exact or self.checksum

    def decide(self, decision: Decision, reason: str, because: str | None) -> None:
        self.decision, self.reason, self.because = decision, reason, because

    def fail(self, error: Exception) -> str | None:
        """Note what stopped the call. A query whose arguments are refused has not begun: it read nothing.

        Of a tool that did not run nobody is told that it failed: what is told instead, unless the error says it.
        """
        self.fault = fault_of(error)
        if self.declared is None and refuses_arguments(error):
            self.course.has_begun = False
            self.decide("deny", "arguments-invalid", self.fault.code)
        cause = error.cause if isinstance(error, ToolDownstreamError) else None
        if cause is None or isinstance(cause, Refused) or self.course.has_begun:
            return None
        return f"the call was not made: {message_of(cause)}"


_CURRENT: Final[ContextVar[ServedCall]] = ContextVar("served_call")

current_call: Final[Callable[[], ServedCall]] = _CURRENT.get
"""Raises `LookupError` outside of a served call: no backend is reached from anywhere else."""


def serving_now() -> ServedCall | None:
    """The call that is being served, if there is one."""
    return _CURRENT.get(None)


def current_client() -> Client | None:
    """Whoever made the current call, if there is one and its wire can be spoken to."""
    call = _CURRENT.get(None)
    return None if call is None else call.client


serve: Final = _CURRENT.set
serve_no_longer: Final = _CURRENT.reset


class serving:  # noqa: N801 - reads as a statement: `with serving(call):`
    """Makes a call the current one for as long as the block runs: `serve`, and in the end `serve_no_longer`."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: ServedCall) -> None:
        self._call = call
        self._token: Any = None

    def __enter__(self) -> ServedCall:
        self._token = serve(self._call)
        return self._call

    def __exit__(self, *_: object) -> None:
        serve_no_longer(self._token)
