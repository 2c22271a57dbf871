"""Records of turns and calls, and the protocol of the store that has them.

The start of a call is recorded if the call could change something, its outcome always. A call with a start and no
outcome is `unknown` once its process is gone. The spool stores the bytes of results; records have only their keys.

Records are never changed. They are not frozen, because creating a frozen one takes four times as long. Times are
microseconds since 1970; properties such as `created_at` return them as datetimes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from gateway.model import Principal, from_microseconds
from gateway.policy import CallBounds, Decision, TurnStateWrite

CallStatus = Literal["started", "settled", "unknown"]
TurnEndReason = Literal["ack", "nack", "abort", "expired"]
ResultKind = Literal["text", "artifact", "media"]
AuditBody = tuple[int, bytes | tuple[Any, ...]]
"""An entry of the decision log: its time in microseconds since 1970, and its body, or what the writer encodes."""


@dataclass(slots=True)
class StoredResult:
    """One piece of a result. `text` is the piece itself; artifacts and media have a `key` in the spool.

    `type` is the name of the artifact class (or a built-in one). `details` has what else is needed to read the piece:
    the options of a class, or kind, MIME type, file name, tier, hazard and stash of media. `content` has the bytes of a
    small piece that is written with the record, so that both are durable in one step; records that are read have none.
    """

    kind: ResultKind
    text: str | None = None
    key: str | None = None
    type: str | None = None
    byte_length: int | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = field(default=None, repr=False)


@dataclass(slots=True)
class ArgumentExcerpt:
    """The stored part of a refused call's arguments, with size and SHA-256 of all of them as canonical JSON."""

    text: str
    bytes: int
    sha256: str


@dataclass(slots=True)
class ReplayArguments:
    """The arguments of a refused call, stored so that another policy can decide it. Masked ones have no value here."""

    values: Mapping[str, Any]
    masked: frozenset[str] = frozenset()


@dataclass(slots=True)
class StoredTurn:
    """The scope of artifacts, stash and memory. Its id is unguessable, and only its principal may use it."""

    id: str
    principal: Principal
    catalogue: str
    revision: str
    secret: bytes = field(repr=False)
    created: int
    expires: int
    stash: Mapping[str, Any] = field(default_factory=dict)
    ended: int | None = None
    ending: TurnEndReason | None = None
    memory: bytes | None = field(default=None, repr=False)
    """The turn state that rules read, as JSON."""

    @property
    def created_at(self) -> datetime:
        return from_microseconds(self.created)

    @property
    def expires_at(self) -> datetime:
        return from_microseconds(self.expires)

    @property
    def ended_at(self) -> datetime | None:
        return None if self.ended is None else from_microseconds(self.ended)


@dataclass(slots=True)
class StoredCall:
    """One call. Its id is unique within its turn; `tool` is the name in the call, `identity` the one in policies.

    `because` names the rule or the gate behind `decision`; `definition` is the hash of the tool's definition.
    `trusted` is the tool's flag at that time, `is_trusted` whether the result is trusted.
    `trace_id` and `span_id`, in hexadecimal digits, are those of the call's span, if there is one.
    `reason` is that of the decision, `decided` when rules were evaluated, in microseconds. `implicit` names the state
    that a call without a turn of its own shared with others.
    """

    id: str
    turn_id: str
    tool: str
    identity: str
    args: Mapping[str, Any]
    checksum: str
    principal: Principal
    catalogue: str
    revision: str
    created: int
    status: CallStatus = "started"
    definition: str | None = None
    decision: Decision | None = None
    because: str | None = None
    is_error: bool = False
    inline: bool = True
    trusted: bool = False
    from_artifact_tool: bool = False
    results: Sequence[StoredResult] = ()
    completed: int | None = None
    idempotency_key: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    args_text: str | None = field(default=None, repr=False, compare=False)
    """The arguments as exact canonical JSON, if they were encoded before."""
    exact: str | None = None
    """The exact digest of tool and arguments, where it is not the checksum."""
    excerpt: ArgumentExcerpt | None = None
    """If set, `args` is empty: the arguments are not stored. Checksum and digest are those of all arguments."""
    reason: str | None = None
    decided: int | None = None
    implicit: str | None = None
    replay: ReplayArguments | None = None
    """The arguments of a refused call, if the Storage document asks for them."""

    @property
    def is_trusted(self) -> bool:
        """Whether the result is trusted. Errors and media never are, whatever the tool is."""
        if not self.trusted or self.is_error:
            return False
        for each in self.results:  # noqa: SIM110 - every call asks, and a generator takes twice as long
            if each.kind == "media":
                return False
        return True

    @property
    def fingerprint(self) -> str:
        """The exact digest of tool and arguments."""
        return self.exact or self.checksum

    @property
    def created_at(self) -> datetime:
        return from_microseconds(self.created)

    @property
    def completed_at(self) -> datetime | None:
        return None if self.completed is None else from_microseconds(self.completed)


def argument_data(call: StoredCall) -> dict[str, Any]:
    """Return the arguments of a call as JSON data, or the excerpt that is stored of a refused call."""
    excerpt = call.excerpt
    if excerpt is None:
        return {"arguments": dict(call.args)}
    return {"argumentsExcerpt": {"text": excerpt.text, "bytes": excerpt.bytes, "sha256": excerpt.sha256}}


@dataclass(frozen=True, slots=True)
class IdempotencyClaim:
    """The state of an idempotency key that a call asked for.

    `fresh`: no call had it, or one that was held or refused; the new call is started and may run. `running`: the same
    call has it and has no outcome yet. `settled`: the same call has an outcome, in `call`. `unknown`: the same call was
    started by a process that is gone, as `call`; it is not run again. `taken`: another call has the key.
    """

    state: Literal["fresh", "running", "settled", "unknown", "taken"]
    call: StoredCall | None = None


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which calls to list. Fields that are `None` match every call. Tenant and subject are those of the principal."""

    tenant: str | None = None
    subject: str | None = None
    turn_id: str | None = None
    catalogue: str | None = None
    tool: str | None = None
    status: CallStatus | None = None
    decision: Decision | None = None
    rule: str | None = None
    """Part of what decided: the name of a gate rule or of a role, or the place of a policy row."""
    trace_id: str | None = None


class CallReservation(NamedTuple):
    """Whether there was room for one more call of a turn, and the turn state after that."""

    is_made: bool
    memory: bytes | None


class ExtendedTurn(NamedTuple):
    """Whether a turn begins with this call, and its turn state if it does not."""

    is_new: bool
    memory: bytes | None = None


class TurnStateStore(Protocol):
    """Turn states, shared by all processes. Raises as `CallStore` does."""

    async def read_turn_state(self, turn_id: str) -> bytes | None: ...

    async def reserve_call(
        self,
        turn_id: str,
        fingerprint: str,
        *,
        bounds: CallBounds,
        memory: bytes | None = None,
        knowing: bytes | None = None,
    ) -> CallReservation:
        """Count a call that is about to run if the turn has had fewer than it may; durable when this returns.

        `memory` is the turn state in this process. It is written first, as in `CallStore.record_call`. A reservation
        is undone if its caller was cancelled or refused before it returned. Raises `RecordConflict` for a turn that is
        not stored, and `MemoryUnreadable` for one whose turn state cannot be read.
        """
        ...


class CallStore(Protocol):
    """Stores turns and calls. A method that writes returns when its changes are durable: synced, not only sent.

    Turns and calls are found only with their principal's subject and tenant: an id alone gives no right. Methods raise
    `StoreUnavailable` within about a second if the store cannot be read or written, and `RecordConflict` for what
    contradicts stored records: a second start, a second outcome, a call in a turn of another principal.
    `audit` has entries of the decision log, which are written in the same transaction.
    """

    async def open_turn(self, turn: StoredTurn) -> None: ...

    async def find_turn(self, id: str, principal: Principal) -> StoredTurn | None:
        """Return `None` for a turn that is unknown, another principal's, or expired. Ended turns are found."""
        ...

    async def end_turn(self, id: str, ending: TurnEndReason, at: datetime, *, stash: Mapping[str, Any]) -> None: ...

    async def extend_turn(self, turn: StoredTurn) -> ExtendedTurn:
        """Extend a turn without calls until its `expires`. An expired turn of that id begins anew."""
        ...

    async def read_turn_state(self, turn_id: str) -> bytes | None: ...

    async def start_call(
        self, call: StoredCall, *, turn: StoredTurn | None = None, audit: Sequence[AuditBody] = ()
    ) -> None:
        """Record that a call is about to run; with a turn that is not stored yet, both or neither.

        The start is undone if its caller was cancelled or refused before this returned, and so does not run the call.
        """
        ...

    async def record_call(
        self,
        call: StoredCall,
        *,
        turn: StoredTurn | None = None,
        memory: bytes | None = None,
        knowing: bytes | None = None,
        audit: Sequence[AuditBody] = (),
        implicit: TurnStateWrite | None = None,
    ) -> None:
        """Record the outcome of a call, started before or not; with a turn that is not stored yet, both or neither.

        If the call was started before, only its outcome is written, and its arguments stay as they were. A stored turn
        expires as late as the one given here, if that is later. `memory` is the new turn state. If the stored one is
        not `knowing`, another process has changed it since, and both are merged. `implicit` is the new state of the
        caller's implicit turn. It is dropped if that turn is not stored.
        """
        ...

    async def record_single_call(
        self,
        call: StoredCall,
        turn: StoredTurn,
        *,
        memory: bytes | None = None,
        audit: Sequence[AuditBody] = (),
        implicit: TurnStateWrite | None = None,
    ) -> None:
        """Record the outcome of a call together with its turn, neither of which is stored yet: both or neither."""
        ...

    async def note(
        self,
        audit: Sequence[AuditBody],
        *,
        turn_id: str | None = None,
        memory: bytes | None = None,
        knowing: bytes | None = None,
    ) -> None:
        """Write entries of the decision log that belong to no other record.

        `memory` is the new state of the turn, as in `record_call`. It is dropped if the turn is not stored.
        """
        ...

    async def abandon_call(self, id: str, *, turn_id: str, at: datetime, audit: Sequence[AuditBody] = ()) -> bool:
        """Mark a call that was started and cut off as `unknown`. Return `False` if it has an outcome, which stays."""
        ...

    async def find_call(self, id: str, principal: Principal, *, turn_id: str | None = None) -> StoredCall | None:
        """Return the newest call of that id; `None` if it is unknown, another principal's, or its turn has expired."""
        ...

    async def list_turn_calls(self, turn_id: str) -> list[StoredCall]:
        """Return the calls of a turn that have an outcome, in the order of their outcomes."""
        ...

    async def list_calls(
        self, filter: CallFilter, *, limit: int, before: str | None = None
    ) -> tuple[list[StoredCall], str | None]:
        """Return calls, newest first, and the cursor of the next page. Raises `ValueError` for an invalid cursor."""
        ...

    async def claim_idempotency_key(
        self,
        key: str,
        principal: Principal,
        *,
        digest: str,
        call: StoredCall,
        until: datetime,
        turn: StoredTurn | None = None,
    ) -> IdempotencyClaim:
        """Claim an idempotency key for a call, or return which call has it. Calls of equal `digest` are the same.

        A fresh claim records the start of the call in the same transaction, as `start_call` does, so every claimed key
        has a recorded call.
        """
        ...

    async def close_interrupted_calls(self, at: datetime) -> int:
        """Mark calls that were started by dead processes as `unknown`. Return how many there were."""
        ...

    async def list_expired_results(self, at: datetime, *, limit: int) -> list[StoredResult]:
        """Return spooled pieces of expired turns. Delete them from the spool before their rows are pruned."""
        ...

    async def delete_results(self, keys: Sequence[str]) -> None:
        """Record that these pieces were deleted from the spool. A turn is pruned when none of its pieces is left."""
        ...

    async def filter_known_results(self, keys: Sequence[str]) -> set[str]:
        """Return which of these pieces a record names. The others were spooled by calls without an outcome."""
        ...

    async def prune(self, at: datetime) -> int:
        """Delete expired turns, calls and keys. Return how many.

        A turn stays while one of its calls runs, or has an idempotency key that has not expired.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class HeldKey:
    """The idempotency key of a call. `until` is in microseconds since 1970."""

    key: str
    digest: str
    until: int
