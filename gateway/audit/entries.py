"""Entries of the decision log, and the bytes that are hashed and stored.

Entries do not contain arguments and results, only their keyed hashes (`content_key`). Absent parts and fields are
omitted. Every body is canonical JSON and begins with its time, so it can be compared without a parser.

An entry is created for every step of every call. Parts that outlive a call are encoded once, when they are created.
Parts of one call are tuples, because a frozen dataclass of this size takes four times as long to create.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from gateway.audit.content_hash import ContentKey
from gateway.audit.vocabulary import Effect, Event, Reason, State, Verdict

VERSION: Final = 2
"""Of the format. Version 1 derived `call.arguments` from the checksum, which rounds integers past 2^53."""

MAX_TEXT: Final = 512
"""Maximum number of characters: callers choose names and keys, and must not be able to flood the log."""

MAX_ITEMS: Final = 64

_SORTED: Final = orjson.OPT_SORT_KEYS
_PREFIX_CHARACTERS: Final = 128


class _SharedPart:
    """A part that many entries share, encoded once."""

    __slots__ = ("encoded", "fragment")

    names: ClassVar[tuple[str, ...]]
    encoded: bytes
    fragment: orjson.Fragment

    def __post_init__(self) -> None:
        values = [getattr(self, name) for name in self.__dataclass_fields__]  # type: ignore[attr-defined] # of subclasses
        encoded = _copy(orjson.dumps(_plain(self.names, values), option=_SORTED))
        object.__setattr__(self, "encoded", encoded)
        object.__setattr__(self, "fragment", orjson.Fragment(encoded))


@dataclass(frozen=True, slots=True)
class AuditOrigin(_SharedPart):
    """The node and the revisions behind a decision. `content_key` names the key of the keyed hashes."""

    names = ("node", "configRevision", "policyRevision", "contentKey")

    node: str
    config_revision: str | None = None
    policy_revision: str | None = None
    content_key: str | None = None


@dataclass(frozen=True, slots=True)
class AuditClient(_SharedPart):
    """The calling program, as it describes itself."""

    names = ("name", "version", "address")

    name: str | None = None
    version: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class AuditCaller(_SharedPart):
    """The principal and how it was authenticated. `token` is a hash of the credential or of its id."""

    names = ("subject", "tenant", "roles", "issuer", "authMethod", "token", "client")

    subject: str
    tenant: str | None = None
    roles: Sequence[str] = ()
    issuer: str | None = None
    auth_method: str | None = None
    token: str | None = None
    client: AuditClient | None = None


@dataclass(frozen=True, slots=True)
class AuditTarget(_SharedPart):
    """What is called: its name for the caller, and its identity in policies."""

    names = ("tool", "catalogue", "identity", "definition", "tier")

    tool: str
    catalogue: str | None = None
    identity: str | None = None
    definition: str | None = None
    tier: str | None = None


class AuditCall(NamedTuple):
    """A call. `arguments` is their keyed hash; `schema_valid` is `None` if they were not validated."""

    id: str
    turn: str | None = None
    idempotency_key: str | None = None
    arguments: str | None = None
    schema_valid: bool | None = None
    trace_id: str | None = None
    span_id: str | None = None


class AuditDecision(NamedTuple):
    """A decision, the rules or rows that made it, and the position of the decisive one (`file:line`).

    `observed` are rules in observe mode that would have decided otherwise, `grants` the caller's grants in force.
    """

    effect: Effect
    reason: Reason
    rules: tuple[str, ...] = ()
    position: str | None = None
    observed: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()


class AuditVote(NamedTuple):
    """The verdict of one approver. `shown` is the digest of what the approver was shown."""

    approver: str
    verdict: Verdict
    at: int
    shown: str | None = None
    assurance: str | None = None
    note: str | None = None


class AuditApproval(NamedTuple):
    """An approval. `digest` identifies the exact call."""

    approval: str
    digest: str | None = None
    requested_at: int | None = None
    expires_at: int | None = None
    entries: Sequence[AuditVote] = ()

    def encode(self) -> bytes:
        return orjson.dumps(_plain(_GATE, self), option=_SORTED)


class AuditOutcome(NamedTuple):
    """The outcome of a call. `result` is a keyed hash; `envelope` is the tier at which its text was rendered."""

    state: State
    error_type: str | None = None
    bytes: int | None = None
    artifact: str | None = None
    result: str | None = None
    envelope: str | None = None


class AuditObject(NamedTuple):
    """What an operator acted on: `tool:order_refund`, a token by its hash."""

    kind: str
    name: str
    note: str | None = None
    until: int | None = None


class CountPart(NamedTuple):
    """Number of refusals between `since` and `until` that were counted instead of logged separately."""

    number: int
    since: int
    until: int


class AuditKeyRotation(NamedTuple):
    """The key that signs anchors from now on, endorsed by its predecessor."""

    before: str
    after: str
    public: str
    endorsement: str


class ChainPosition(NamedTuple):
    """An entry, identified by its position and its hash."""

    shard: str
    seq: int
    hash: str


class ShardOpening(NamedTuple):
    """The first entry of a shard: its name, and the last entries of its predecessors."""

    shard: str
    predecessors: Sequence[ChainPosition] = ()


class AuditEntry(NamedTuple):
    """One entry. `at` is in microseconds since 1970, UTC."""

    event: Event
    at: int
    place: AuditOrigin
    caller: AuditCaller | None = None
    target: AuditTarget | None = None
    call: AuditCall | None = None
    decision: AuditDecision | None = None
    outcome: AuditOutcome | None = None
    gate: AuditApproval | None = None
    object: AuditObject | None = None
    key: AuditKeyRotation | None = None
    opened: ShardOpening | None = None
    pruned: ChainPosition | None = None
    counted: CountPart | None = None

    def encode(self) -> bytes:
        """Return the body as canonical JSON, sorted and compact."""
        event, at, place, caller, target, call, decision, outcome, gate, object, key, opened, pruned, counted = self
        call_part = None if call is None else call_fields(*call)
        outcome_part = None if outcome is None else outcome_fields(*outcome)
        body = _build_body(
            event,
            at,
            place.fragment,
            caller=None if caller is None else caller.fragment,
            target=None if target is None else target.fragment,
            call=call_part,
            decision=decision,
            gate=None if gate is None else orjson.Fragment(gate.encode()),
            outcome=outcome_part,
        )
        if not (object or key or opened or pruned or counted):
            return orjson.dumps(body)
        if object is not None:
            body["object"] = _plain(_OBJECT, object)
        if counted is not None:
            body["counted"] = _plain(_COUNT, counted)
        # All statements about the log are under one name: verification searches for it first.
        about = {"key": key and _plain(_KEY, key), "opened": opened and _plain(_OPENING, opened)}
        about["pruned"] = pruned and _plain(_MARK, pruned)
        if key or opened or pruned:
            body["log"] = {name: part for name, part in about.items() if part is not None}
        return orjson.dumps(body, option=_SORTED)


TargetValues = tuple[str, str | None, str | None, str | None, str | None]
CallValues = tuple[str, str | None, str | None, str | None, bool | None]
DecisionValues = tuple[Effect, Reason, tuple[str, ...], str | None, tuple[str, ...], tuple[str, ...]]
OutcomeValues = tuple[State, str | None, int | None, str | None, bytes | None, str | None]

EntryValues = tuple[
    Event, bytes, bytes, TargetValues, CallValues, DecisionValues | None, OutcomeValues | None, bytes | None
]
"""An entry about a call before it is encoded: event; encoded place and caller; values of target, call, decision and
outcome, with the exact digest of the call and the content of its result instead of keyed hashes; and the encoded gate.
It is plain data, so that another process can hash and encode it.
"""


def encode_entry(at: int, entry: bytes | EntryValues, key: ContentKey | None) -> bytes:
    """Return what `AuditEntry.encode` returns, unless it is already encoded."""
    if isinstance(entry, bytes):
        return entry
    assert key is not None, "values are encoded with a content key"  # noqa: S101 - callers without a key pass bytes
    event, place, caller, target, (id, turn, idempotency_key, fingerprint, is_valid), decision, outcome, gate = entry
    arguments = key.arguments(fingerprint.encode()) if fingerprint else None
    body = _build_body(
        event,
        at,
        orjson.Fragment(place),
        caller=orjson.Fragment(caller),
        target=_encode_target(target),
        call=call_fields(id, turn, idempotency_key, arguments, is_valid),
        decision=decision,
        gate=None if gate is None else orjson.Fragment(gate),
        outcome=None if outcome is None else _hash_outcome(outcome, key),
    )
    return orjson.dumps(body)


def _hash_outcome(outcome: OutcomeValues, key: ContentKey) -> dict[str, Any]:
    state, error_type, size, artifact, content, envelope = outcome
    result = None if content is None else key.result(content)
    return outcome_fields(state, error_type, size, artifact, result, envelope)


def _build_body(
    event: Event,
    at: int,
    place: orjson.Fragment,
    *,
    caller: orjson.Fragment | None,
    target: orjson.Fragment | None,
    call: dict[str, Any] | None,
    decision: DecisionValues | None,
    gate: orjson.Fragment | None,
    outcome: dict[str, Any] | None,
) -> dict[str, Any]:
    """Build the body in the order of canonical JSON, so that it need not be sorted."""
    body: dict[str, Any] = {"at": at}
    if call is not None:
        body["call"] = call
    if caller is not None:
        body["caller"] = caller
    if decision is not None:
        body["decision"] = _encode_decision(decision)
    body["event"] = event
    if gate is not None:
        body["gate"] = gate
    if outcome is not None:
        body["outcome"] = outcome
    body["place"] = place
    if target is not None:
        body["target"] = target
    body["v"] = VERSION
    return body


_DECISION: Final = ("effect", "reason", "rules", "position", "observed", "grants")
_GATE_ENTRY: Final = ("approver", "verdict", "at", "shown", "assurance", "note")
_GATE: Final = ("approval", "digest", "requestedAt", "expiresAt", "entries")
_OBJECT: Final = ("kind", "name", "note", "until")
_COUNT: Final = ("number", "since", "until")
_KEY: Final = ("before", "after", "public", "endorsement")
_MARK: Final = ("shard", "seq", "hash")
_OPENING: Final = ("shard", "predecessors")


def call_fields(
    id: str,
    turn: str | None,
    idempotency_key: str | None,
    arguments: str | None,
    schema_valid: bool | None,
    trace_id: str | None = None,
    span_id: str | None = None,
) -> dict[str, Any]:
    """Return what `_plain` would, at a quarter of the cost. Callers choose `id` and `idempotency_key`."""
    part: dict[str, Any] = {}
    if arguments is not None:
        part["arguments"] = arguments
    part["id"] = id if len(id) <= MAX_TEXT and id.isascii() else truncate(id)
    if idempotency_key is not None:
        part["idempotencyKey"] = truncate(idempotency_key)
    if schema_valid is not None:
        part["schemaValid"] = schema_valid
    if span_id is not None:
        part["spanId"] = span_id
    if trace_id is not None:
        part["traceId"] = trace_id
    if turn is not None:
        part["turn"] = turn if len(turn) <= MAX_TEXT and turn.isascii() else truncate(turn)
    return part


def outcome_fields(
    state: State,
    error_type: str | None,
    bytes: int | None,
    artifact: str | None,
    result: str | None,
    envelope: str | None,
) -> dict[str, Any]:
    part: dict[str, Any] = {}
    if artifact is not None:
        part["artifact"] = truncate(artifact)
    if bytes is not None:
        part["bytes"] = bytes
    if envelope is not None:
        part["envelope"] = truncate(envelope)
    if error_type is not None:
        part["errorType"] = truncate(error_type)
    if result is not None:
        part["result"] = result
    part["state"] = state
    return part


def _copy(encoded: bytes) -> bytes:
    """Return bytes of their own size: what orjson returns keeps a buffer of 4 KB for as long as it lives."""
    return b"%b" % encoded


@lru_cache(maxsize=4096)  # rules and rows are few, calls are many
def _encode_decision(part: DecisionValues) -> orjson.Fragment:
    return orjson.Fragment(_copy(orjson.dumps(_plain(_DECISION, part), option=_SORTED)))


@lru_cache(maxsize=4096)  # tools are few, too
def _encode_target(part: TargetValues) -> orjson.Fragment:
    return AuditTarget(*part).fragment


def truncate(text: str) -> str:
    """Return the text, or the start of a long one with its hash; unpaired surrogates are replaced."""
    if text.isascii() and len(text) <= MAX_TEXT:
        return text
    clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if len(clean) <= MAX_TEXT:
        return clean
    return f"{clean[:_PREFIX_CHARACTERS]}…sha256:{sha256(clean.encode()).hexdigest()}"


def _plain(names: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    """Return the values that are present as JSON data."""
    part: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if value is None:
            continue
        kind = type(value)
        if kind is str:
            part[name] = truncate(value)
        elif kind is int or kind is bool:
            part[name] = value
        elif isinstance(value, _SharedPart):
            part[name] = value.fragment
        elif value:
            part[name] = _to_items(value)
    return part


def _to_items(values: Sequence[Any]) -> list[Any]:
    """Return at most `MAX_ITEMS` texts, followed by the total number if there are more."""
    if isinstance(values[0], AuditVote):
        return [_plain(_GATE_ENTRY, value) for value in values]
    if isinstance(values[0], ChainPosition):
        return [_plain(_MARK, value) for value in values]
    texts = [truncate(value) for value in values[:MAX_ITEMS]]
    return texts if len(values) <= MAX_ITEMS else [*texts, f"…{len(values)} in all"]
