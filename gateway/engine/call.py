"""The call that is being served: who makes it, its record, and the decisions about it.

It is stored in a context variable, so that a generated handler finds it whatever code runs between transport and
handler. So is the origin of a request: its credential, its address, and the name the client gives itself. The audit
log reads the origin; no decision depends on it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from gateway.approvals import ApprovalRecord
from gateway.errors import (
    GatewayError,
    InvalidToolArgs,
    JsonPathInvalid,
    PatternNotSupported,
    Refused,
    ToolDownstreamError,
    message_of,
)
from gateway.model import CallerChannel, Credential, Principal, Question, UpstreamMeta
from gateway.policy import Decision, RuleVerdict, TurnState
from gateway.registries import DeclaredTool, Position
from gateway.storage import HeldKey, StoredCall

if TYPE_CHECKING:
    from gateway.engine.observer import CallObservation
    from gateway.engine.turns.turn import Turn


@dataclass(slots=True)
class Course:
    """`has_begun` is true from the moment the tool may have had an effect. The ids are known before that."""

    has_begun: bool = False
    call_id: str = ""
    turn_id: str = ""


class OutcomeLost(GatewayError):
    """The tool may have run, and its outcome cannot be shown. `call_id` leads to the record of the call."""

    code = "E_OUTCOME_LOST"
    status = 424
    default_message = "the tool may have run, and its outcome could not be shown; do not repeat the call"

    def __init__(self, course: Course) -> None:
        super().__init__(help="look at the record of the call first; with the same idempotency key it runs once")
        self.call_id = course.call_id
        self.turn_id = course.turn_id


class OutcomeNotRecorded(OutcomeLost):
    """The tool ran, its outcome cannot be recorded right now, and nothing unrecorded is shown."""

    code = "E_OUTCOME_NOT_RECORDED"
    default_message = "the tool ran, but its outcome could not be recorded and is not shown; do not repeat the call"


RAN_UNRECORDED: Final = {
    "code": OutcomeNotRecorded.code,
    "message": "The tool ran. Its outcome could not be recorded yet; the gateway does that when its store recovers. "
    "Do not repeat the call.",
}
"""Sent beside the result of a call whose start is on record and whose outcome is not."""


class Fault(NamedTuple):
    """What stopped a call: the code and the HTTP-like status of the error, and when to send the call again."""

    code: str
    status: int
    retry_after: int | None = None
    """Seconds, rounded up; `None` if the error does not define it."""


def fault_of(error: Exception) -> Fault:
    """Return the fault behind an error. Foreign errors count as the worst."""
    cause = error.cause if isinstance(error, ToolDownstreamError) else error
    if isinstance(cause, GatewayError):
        return Fault(cause.code, cause.status, _seconds(getattr(cause, "retry_after", None)))
    return Fault(type(cause).__name__, GatewayError.status)


def refuses_arguments(error: Exception) -> bool:
    """Whether the arguments are at fault: they break the schema, or a query cannot run what they ask for."""
    if isinstance(error, ToolDownstreamError):
        return isinstance(error.cause, PatternNotSupported | JsonPathInvalid)
    return isinstance(error, InvalidToolArgs)


def _seconds(wait: Any) -> int | None:
    if isinstance(wait, timedelta):
        return max(1, ceil(wait.total_seconds()))
    return wait if isinstance(wait, int) else None


ConfirmationAnswer = Literal["accept", "decline", "cancel"]


@dataclass(frozen=True, slots=True)
class HoldPolicy:
    """How a call is held, by its transport. `waits`: it waits for approvers for as long as the rule allows.

    `approvals` are those that an earlier, equal call was held for: this call resumes them. `answer` is the caller's
    answer to the request to confirm the action with the digest `about`.
    """

    waits: bool = True
    approvals: tuple[str, ...] = ()
    answer: ConfirmationAnswer | None = None
    about: str | None = None

    def has_confirmed(self, digest: str) -> bool:
        return self.answer == "accept" and self.about == digest


DEFAULT_HOLD_POLICY: Final = HoldPolicy()

NOT_WAITING: Final = HoldPolicy(waits=False)
"""For requests that are answered at once, with the approvals they wait for."""


@dataclass(frozen=True, slots=True)
class PendingConfirmation:
    """The question to a caller before its call runs. `digest` is that of the action, `until` when it expires."""

    question: Question
    digest: str
    until: datetime


@dataclass(slots=True)
class Call:
    """One call in progress. The handler sets the decision fields."""

    id: str
    tool: str
    args: dict[str, Any]
    principal: Principal
    catalogue: str
    revision: str
    idempotency_key: str | None = None
    client: CallerChannel | None = None
    turn: "Turn | None" = None
    checksum: str = ""
    args_text: str | None = None
    """The arguments as exact canonical JSON."""
    holding: HoldPolicy = DEFAULT_HOLD_POLICY
    given: dict[str, Any] | str | None = None
    """The arguments as received."""
    exact: str | None = None
    """The exact digest of tool and arguments, if it differs from the checksum."""
    declared: DeclaredTool | None = None
    """The tool; `None` for a query tool."""
    target: StoredCall | None = None
    """The call that a query reads, if it belongs to another turn."""
    decision: Decision | None = None
    reason: str = ""
    """The decision's reason, a word of the audit vocabulary."""
    because: str | None = None
    rules: tuple[str, ...] = ()
    position: str | None = None
    row: Position | None = None
    """The place of the policy row that decided, if one did."""
    is_decision_cached: bool | None = None
    """Whether the policy had decided the same before; `None` if it was not asked."""
    grants: tuple[str, ...] = ()
    """Ids of the caller's grants in force when it was authorised."""
    verdicts: tuple[RuleVerdict, ...] = ()
    """The verdicts of the rules that allowed the call."""
    observed: tuple[str, ...] = ()
    """Rules that only observe and would have refused."""
    approvals: Sequence[ApprovalRecord] = ()
    pending: Mapping[str, Any] | None = None
    """Data for programs if the call waits for approvers."""
    unconfirmed: PendingConfirmation | None = None
    """The question that the caller has to answer first."""
    limited: Mapping[str, Any] | None = None
    """Data for programs if a rate or a quota stopped the call."""
    aside: UpstreamMeta | None = None
    """What the upstream sent beside its result."""
    identity: str | None = None
    definition: str | None = None
    depends_on_arguments: bool = True
    """Whether the decision may be another one for other valid arguments."""
    error: str | None = None
    """The code of the error, if any."""
    is_started: bool = False
    """Whether a start record is durable: from then on the outcome is unknown until it settles."""
    is_refused: bool = False
    """Whether its refusal is written, or about to be: it is counted once."""
    is_cancelled: bool = False
    """Whether its caller left before it ended."""
    held_key: HeldKey | None = None
    """Its idempotency key, once the call has claimed it."""
    is_unwritten: bool = False
    """Whether its tool ran and its outcome could not be written: the store writes it when it recovers."""
    is_unknown: bool = False
    """Whether it is on record that its outcome is unknown."""
    seen: "CallObservation | None" = None
    """Its observation, if an observer is set."""
    stored: StoredCall | None = None
    """Its stored row, if it is observed."""
    is_logged: bool = False
    """Whether it has an audit entry."""
    sightings: Mapping[str, int] | None = None
    """When its caller last saw each flag, if a rule reads that."""
    charge: Callable[[int], Awaitable[None]] | None = None
    """Counts the bytes of its result, if a budget of its caller limits bytes."""
    decided: int | None = None
    """When its rules were evaluated, in microseconds; `None` if it has none."""
    course: Course = field(default_factory=Course)
    """How far it has come."""
    fault: Fault | None = None
    """What stopped it, if anything."""

    own_memory: TurnState | None = None
    """The state of a request without a turn."""
    fingerprint: str = field(init=False)
    """Identifies the call exactly among calls of its tool. Empty for arguments that cannot be hashed."""

    def __post_init__(self) -> None:
        self.fingerprint = self.exact or self.checksum

    @property
    def turn_state(self) -> TurnState:
        if self.turn is not None:
            return self.turn.state
        if self.own_memory is None:
            self.own_memory = TurnState()
        return self.own_memory

    @property
    def checked(self) -> tuple[str, ...]:
        """Rules that allowed the call."""
        return tuple(each.rule.name for each in self.verdicts)

    def set_decision(self, decision: Decision, reason: str, because: str | None) -> None:
        self.decision, self.reason, self.because = decision, reason, because

    def fail(self, error: Exception) -> str | None:
        """Record what stopped the call. A query whose arguments are refused has not begun: it read nothing.

        Return the message for the caller if the tool did not run and the error itself does not state that.
        """
        self.fault = fault_of(error)
        if self.declared is None and refuses_arguments(error):
            self.course.has_begun = False
            self.set_decision("deny", "arguments-invalid", self.fault.code)
        cause = error.cause if isinstance(error, ToolDownstreamError) else None
        if cause is None or isinstance(cause, Refused) or self.course.has_begun:
            return None
        return f"the call was not made: {message_of(cause)}"


_CURRENT: Final[ContextVar[Call]] = ContextVar("served_call")

get_current_call: Final[Callable[[], Call]] = _CURRENT.get
"""Raise `LookupError` outside of a served call: backends are reached only from served calls."""


def find_current_call() -> Call | None:
    """Return the call that is being served, if there is one."""
    return _CURRENT.get(None)


def get_caller_channel() -> CallerChannel | None:
    """Return the caller of the current call, if there is one and its transport supports messages to it."""
    call = _CURRENT.get(None)
    return None if call is None else call.client


set_current_call: Final = _CURRENT.set
reset_current_call: Final = _CURRENT.reset


class call_context:  # noqa: N801 - reads as a statement: `with call_context(call):`
    """Makes a call the current one while the block runs: `set_current_call`, then `reset_current_call`."""

    __slots__ = ("_call", "_token")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._token: Any = None

    def __enter__(self) -> Call:
        self._token = set_current_call(self._call)
        return self._call

    def __exit__(self, *_: object) -> None:
        reset_current_call(self._token)


MAX_NAME: Final = 128
"""Maximum characters of a client's name and version."""


class RequestOrigin(NamedTuple):
    """`name` and `version` are what the client sends about itself."""

    credential: Credential | None = None
    address: str | None = None
    name: str | None = None
    version: str | None = None


UNKNOWN_ORIGIN: Final = RequestOrigin()

_ORIGIN: Final[ContextVar[RequestOrigin]] = ContextVar("gateway_origin", default=UNKNOWN_ORIGIN)


get_request_origin: Final = _ORIGIN.get
_make_origin: Final = lru_cache(maxsize=1024)(RequestOrigin)
"""A caller sends many requests from one address."""


def set_request_origin(credential: Credential | None, client: Sequence[Any] | None) -> None:
    """Set the origin of the current request; `client` is the address and port of its connection, if any."""
    _ORIGIN.set(_make_origin(credential, client[0] if client else None))


def set_client_info(info: object) -> None:
    """Set the client's name and version, sent in the shape of MCP; anything of another shape is ignored."""
    if isinstance(info, dict):
        credential, address, _, _ = _ORIGIN.get()
        _ORIGIN.set(RequestOrigin(credential, address, _word(info.get("name")), _word(info.get("version"))))


def _word(value: object) -> str | None:
    return value[:MAX_NAME] if isinstance(value, str) and value else None
