"""What is kept of turns and calls, as plain data, and the protocol of whoever keeps it.

A call is written down when it starts, if it could change something, and when it settles, always; what was started and
never settled has an outcome that nobody saw. Bytes of results are kept by a spool; here are only their names.

Records are not changed once they are made. They are not frozen, because making a frozen one takes four times as long.
Their moments are microseconds since 1970; as datetimes (`created_at` and the like) they are for whoever shows them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from gateway.core.moments import moment
from gateway.governance.memory import Bounds
from gateway.governance.principals import Principal
from gateway.governance.rules import Decision

CallStatus = Literal["started", "settled", "unknown"]
TurnEnding = Literal["ack", "nack", "abort", "expired"]
ResultKind = Literal["text", "artifact", "media"]
AuditBody = tuple[int, bytes | tuple[Any, ...]]
"""An entry of the decision log: when it happened, in microseconds since 1970, and its body, or what that is made of:
whoever writes the entry encodes it.
"""


@dataclass(slots=True)
class StoredResult:
    """One piece of a result. `text` is the piece itself; artifacts and media have a `key` in the spool.

    `type` is the artifact class by name (or a built-in one), `details` what else is needed to read the piece again:
    the options of a class, or kind, MIME type, file name, tier, hazard and stash of media. `content` is given with a
    small piece that the spool left to the record, so that both are durable in one step; what is read back has none.
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
    """What is kept of the arguments of a refused call: a short text, how many bytes they were, and their SHA-256.

    Size and digest are of the arguments as canonical JSON.
    """

    text: str
    bytes: int
    sha256: str


@dataclass(slots=True)
class StoredTurn:
    """The scope of artifacts, stash and memory. Its id is unguessable, and only its principal's to name."""

    id: str
    principal: Principal
    catalogue: str
    revision: str
    secret: bytes = field(repr=False)
    created: int
    expires: int
    stash: Mapping[str, Any] = field(default_factory=dict)
    ended: int | None = None
    ending: TurnEnding | None = None
    memory: bytes | None = field(default=None, repr=False)
    """What the turn remembers for rules that ask, as JSON."""

    @property
    def created_at(self) -> datetime:
        return moment(self.created)

    @property
    def expires_at(self) -> datetime:
        return moment(self.expires)

    @property
    def ended_at(self) -> datetime | None:
        return None if self.ended is None else moment(self.ended)


@dataclass(slots=True)
class StoredCall:
    """One call. Its id is unique within its turn; `tool` is the name it was called by, `identity` what policies say.

    `decision` and `because` tell who let it through or stopped it; `definition` is the hash of what the tool was.
    `trusted` is the tool's flag at that time; what is told of the result is `is_trusted`.
    `trace_id` and `span_id`, in hexadecimal digits, are of the span that observed it, if somebody did.
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
    """The arguments as exact canonical JSON, if they are written already."""
    exact: str | None = None
    """The exact digest of tool and arguments, where it is not the checksum."""
    excerpt: ArgumentExcerpt | None = None
    """With this, `args` is empty: the arguments are not kept. Checksum and digest are still theirs."""

    @property
    def is_trusted(self) -> bool:
        """Whether the result counts as trusted. Errors and media never do, whatever the tool is."""
        return self.trusted and not self.is_error and all(each.kind != "media" for each in self.results)

    @property
    def fingerprint(self) -> str:
        """Tells the call from others of its tool, exactly."""
        return self.exact or self.checksum

    @property
    def created_at(self) -> datetime:
        return moment(self.created)

    @property
    def completed_at(self) -> datetime | None:
        return None if self.completed is None else moment(self.completed)


def argument_data(call: StoredCall) -> dict[str, Any]:
    """All arguments of a call as JSON data, or what is left of those of one that was refused."""
    excerpt = call.excerpt
    if excerpt is None:
        return {"arguments": dict(call.args)}
    return {"argumentsExcerpt": {"text": excerpt.text, "bytes": excerpt.bytes, "sha256": excerpt.sha256}}


@dataclass(frozen=True, slots=True)
class Claim:
    """What became of an idempotency key.

    `fresh`: nobody had it, or whoever had it was held or refused; the call is started and may run. `running`: the same
    call holds it and has not settled. `settled`: the same call has settled as `call`. `unknown`: the same call was
    started by a process that is gone, as `call`; it is not run again. `taken`: the key stands for another call.
    """

    state: Literal["fresh", "running", "settled", "unknown", "taken"]
    call: StoredCall | None = None


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which calls to list; what is `None` does not matter. Tenant and subject are those of the principal."""

    tenant: str | None = None
    subject: str | None = None
    turn_id: str | None = None
    catalogue: str | None = None
    tool: str | None = None
    status: CallStatus | None = None


class Reserved(NamedTuple):
    """Whether there was room for one more call of a turn, and what the turn remembers now."""

    is_made: bool
    memory: bytes | None


class KeptTurn(NamedTuple):
    """Whether a turn begins with this call, and what it remembers if it does not."""

    is_new: bool
    memory: bytes | None = None


class TurnMemories(Protocol):
    """What turns remember, as every process that serves them comes to know it. Raises as `Store` does."""

    async def memory_of_turn(self, turn_id: str) -> bytes | None: ...

    async def reserve_call(
        self,
        turn_id: str,
        fingerprint: str,
        *,
        bounds: Bounds,
        memory: bytes | None = None,
        knowing: bytes | None = None,
    ) -> Reserved:
        """Count a call that is about to be made, if the turn has made fewer than it may; durable when this returns.

        `memory` is what the caller knows of the turn, which is written first, as in `Store.settle_call`.

        What a caller that was cancelled or refused did not learn of is taken back. Raises `RecordConflict` for a turn
        that is not kept, and `MemoryUnreadable` for one whose memory is none.
        """
        ...


class Store(Protocol):
    """Keeps turns and calls. A method that writes returns when what it wrote is durable: synced, not only sent.

    Turns and calls are only found together with their principal's subject and tenant: a handle is a name, not a right.
    Whatever cannot be read or written raises `StoreUnavailable`, within about a second; what contradicts what is stored
    already (a second start, a second outcome, a call in a turn of another principal) raises `RecordConflict`.
    `audit` are entries of the decision log about what is written: durable together with it, or neither is.
    """

    async def open_turn(self, turn: StoredTurn) -> None: ...

    async def find_turn(self, id: str, principal: Principal) -> StoredTurn | None:
        """`None` for a turn that is unknown, another principal's, or past its `expires_at`; ended ones are found."""
        ...

    async def end_turn(self, id: str, ending: TurnEnding, at: datetime, *, stash: Mapping[str, Any]) -> None: ...

    async def keep_turn(self, turn: StoredTurn) -> KeptTurn:
        """Have a turn without calls live until `expires`; one of that id that is over begins anew."""
        ...

    async def memory_of_turn(self, turn_id: str) -> bytes | None: ...

    async def start_call(
        self, call: StoredCall, *, turn: StoredTurn | None = None, audit: Sequence[AuditBody] = ()
    ) -> None:
        """Write down that a call is about to run; with a turn that is not stored yet, both or neither.

        What a caller that was cancelled or refused did not learn of is taken back: it does not run the call.
        """
        ...

    async def settle_call(
        self,
        call: StoredCall,
        *,
        turn: StoredTurn | None = None,
        memory: bytes | None = None,
        knowing: bytes | None = None,
        audit: Sequence[AuditBody] = (),
    ) -> None:
        """Write a settled call, started before or not; with a turn that is not stored yet, both or neither.

        Of a call that was started before only the outcome is written: what it was asked stays as it was. A turn that
        is stored already lives as long as the one given here, if that is longer. `memory` is what the turn remembers
        from now on, besides what others have it remember: what it has by now, unless that is what was known.
        """
        ...

    async def settle_alone(
        self, call: StoredCall, turn: StoredTurn, *, memory: bytes | None = None, audit: Sequence[AuditBody] = ()
    ) -> None:
        """Write a settled call together with its turn, neither of which is stored yet: both or neither."""
        ...

    async def note(
        self,
        audit: Sequence[AuditBody],
        *,
        turn_id: str | None = None,
        memory: bytes | None = None,
        knowing: bytes | None = None,
    ) -> None:
        """Write entries of the decision log that are about nothing else that is stored.

        With a turn, that remembers `memory` from now on, as in `settle_call`; one that is not stored is left alone.
        """
        ...

    async def give_up_call(self, id: str, *, turn_id: str, at: datetime, audit: Sequence[AuditBody] = ()) -> bool:
        """Mark a call that was started and cut off as `unknown`; whether it is. One that has an outcome keeps it."""
        ...

    async def find_call(self, id: str, principal: Principal, *, turn_id: str | None = None) -> StoredCall | None:
        """The newest call of that id; `None` if it is unknown, another principal's, or its turn is past its end."""
        ...

    async def calls_of(self, turn_id: str) -> list[StoredCall]:
        """The settled calls of a turn in the order they were settled in."""
        ...

    async def list_calls(
        self, filter: CallFilter, *, limit: int, before: str | None = None
    ) -> tuple[list[StoredCall], str | None]:
        """A page of calls, newest first, and the cursor of the next page; `ValueError` for a cursor that is none."""
        ...

    async def claim(
        self,
        key: str,
        principal: Principal,
        *,
        digest: str,
        call: StoredCall,
        until: datetime,
        turn: StoredTurn | None = None,
    ) -> Claim:
        """Take an idempotency key for a call, or learn who has it. `digest` is what makes two calls the same.

        A fresh claim writes the start of the call in the same step, as `start_call` does: a key never stands for a
        call that nobody wrote down.
        """
        ...

    async def recover(self, at: datetime) -> int:
        """Mark calls that were started by processes that are gone as `unknown`; how many there were."""
        ...

    async def expired_results(self, at: datetime, *, limit: int) -> list[StoredResult]:
        """Spooled pieces whose turn is past its end of life, to be deleted from the spool before the rows go."""
        ...

    async def forget_results(self, keys: Sequence[str]) -> None:
        """Note that these pieces were deleted from the spool; a turn is pruned only when none of its own is left."""
        ...

    async def known_results(self, keys: Sequence[str]) -> set[str]:
        """Which of these pieces a record names. Others were spooled by calls that never settled."""
        ...

    async def prune(self, at: datetime) -> int:
        """Remove turns, calls and keys past their end of life; how many of them went.

        A turn also stays while one of its calls runs, or is what an idempotency key still stands for.
        """
        ...

    async def close(self) -> None: ...
