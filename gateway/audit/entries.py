"""What one entry of the decision log says, and the bytes it is hashed and kept as.

Contents of calls are not here: arguments and results appear as keyed hashes (`contents`). Absent parts and fields are
left out. Every body is canonical JSON and begins with its moment, so that anybody can compare it without a parser.

An entry is made for every step of every call. What lives longer than a call is encoded once, when it is made; what
belongs to one call is a tuple, because a frozen dataclass of this size costs four times as much to make.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, ClassVar, Final, NamedTuple

import orjson

from gateway.audit.contents import ContentKey
from gateway.audit.words import Effect, Event, Reason, State, Verdict

VERSION: Final = 2
"""Of the format. In version 1 `call.arguments` was made of the checksum, which rounds integers past 2^53."""

MAX_TEXT: Final = 512
"""Characters. Callers choose names and keys, and a log that they can fill is no log."""

MAX_ITEMS: Final = 64

_SORTED: Final = orjson.OPT_SORT_KEYS
_KEPT_OF_LONG: Final = 128


class _Lasting:
    """A part that many entries share, encoded once."""

    __slots__ = ("encoded", "fragment")

    names: ClassVar[tuple[str, ...]]
    encoded: bytes
    fragment: orjson.Fragment

    def __post_init__(self) -> None:
        values = [getattr(self, name) for name in self.__dataclass_fields__]  # type: ignore[attr-defined] # of subclasses
        encoded = orjson.dumps(_plain(self.names, values), option=_SORTED)
        object.__setattr__(self, "encoded", encoded)
        object.__setattr__(self, "fragment", orjson.Fragment(encoded))


@dataclass(frozen=True, slots=True)
class Place(_Lasting):
    """Where a decision was made, and by which documents. `content_key` names the key of keyed hashes."""

    names = ("node", "configRevision", "policyRevision", "contentKey")

    node: str
    config_revision: str | None = None
    policy_revision: str | None = None
    content_key: str | None = None


@dataclass(frozen=True, slots=True)
class Client(_Lasting):
    """The program that calls, by its own account."""

    names = ("name", "version", "address")

    name: str | None = None
    version: str | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Caller(_Lasting):
    """On whose behalf, and how we know. `token` is a hash of the credential, or its id hashed: never either itself."""

    names = ("subject", "tenant", "roles", "issuer", "authMethod", "token", "client")

    subject: str
    tenant: str | None = None
    roles: Sequence[str] = ()
    issuer: str | None = None
    auth_method: str | None = None
    token: str | None = None
    client: Client | None = None


@dataclass(frozen=True, slots=True)
class Target(_Lasting):
    """What is called: the name it was called by, and what policies know it as."""

    names = ("tool", "catalogue", "identity", "definition", "tier")

    tool: str
    catalogue: str | None = None
    identity: str | None = None
    definition: str | None = None
    tier: str | None = None


class CallPart(NamedTuple):
    """Which call. `arguments` is their keyed hash; `schema_valid` is `None` where nobody came to look."""

    id: str
    turn: str | None = None
    idempotency_key: str | None = None
    arguments: str | None = None
    schema_valid: bool | None = None
    trace_id: str | None = None
    span_id: str | None = None


class DecisionPart(NamedTuple):
    """What was decided, by which rules or rows, and where the one that decided stands (`file:line`).

    `observed` are rules in observe mode that would have decided otherwise.
    """

    effect: Effect
    reason: Reason
    rules: tuple[str, ...] = ()
    position: str | None = None
    observed: tuple[str, ...] = ()


class GateEntry(NamedTuple):
    """One person's word. `shown` is the digest of what they were shown."""

    approver: str
    verdict: Verdict
    at: int
    shown: str | None = None
    assurance: str | None = None
    note: str | None = None


class GatePart(NamedTuple):
    """An approval: `digest` is of the exact call that it is about."""

    approval: str
    digest: str | None = None
    requested_at: int | None = None
    expires_at: int | None = None
    entries: Sequence[GateEntry] = ()

    def encode(self) -> bytes:
        return orjson.dumps(_plain(_GATE, self), option=_SORTED)


class OutcomePart(NamedTuple):
    """How a call ended. `result` is a keyed hash; `envelope` the tier that its text was rendered at."""

    state: State
    error_type: str | None = None
    bytes: int | None = None
    artifact: str | None = None
    result: str | None = None
    envelope: str | None = None


class ObjectPart(NamedTuple):
    """What an operator acted upon: `tool:order_refund`, a token by its hash."""

    kind: str
    name: str
    note: str | None = None
    until: int | None = None


class CountPart(NamedTuple):
    """How many refusals were counted instead of being told one by one, since a moment and until one."""

    number: int
    since: int
    until: int


class KeyPart(NamedTuple):
    """The key that signs anchors from here on, vouched for by the one that did before."""

    before: str
    after: str
    public: str
    endorsement: str


class Mark(NamedTuple):
    """An entry of some shard by its place and its hash."""

    shard: str
    seq: int
    hash: str


class Opening(NamedTuple):
    """The first entry of a shard names it, and the last entries of the shards that it follows."""

    shard: str
    predecessors: Sequence[Mark] = ()


class Entry(NamedTuple):
    """One entry. `at` is in microseconds since 1970, UTC."""

    event: Event
    at: int
    place: Place
    caller: Caller | None = None
    target: Target | None = None
    call: CallPart | None = None
    decision: DecisionPart | None = None
    outcome: OutcomePart | None = None
    gate: GatePart | None = None
    object: ObjectPart | None = None
    key: KeyPart | None = None
    opened: Opening | None = None
    pruned: Mark | None = None
    counted: CountPart | None = None

    def encode(self) -> bytes:
        """The body: canonical JSON, sorted and compact."""
        event, at, place, caller, target, call, decision, outcome, gate, object, key, opened, pruned, counted = self
        told = None if call is None else call_fields(*call)
        ended = None if outcome is None else outcome_fields(*outcome)
        body = _body(
            event,
            at,
            place.fragment,
            caller=None if caller is None else caller.fragment,
            target=None if target is None else target.fragment,
            call=told,
            decision=decision,
            gate=None if gate is None else orjson.Fragment(gate.encode()),
            outcome=ended,
        )
        if not (object or key or opened or pruned or counted):
            return orjson.dumps(body)
        if object is not None:
            body["object"] = _plain(_OBJECT, object)
        if counted is not None:
            body["counted"] = _plain(_COUNT, counted)
        # One name for all that the log says about itself: whoever verifies looks for it first.
        about = {"key": key and _plain(_KEY, key), "opened": opened and _plain(_OPENING, opened)}
        about["pruned"] = pruned and _plain(_MARK, pruned)
        if key or opened or pruned:
            body["log"] = {name: part for name, part in about.items() if part is not None}
        return orjson.dumps(body, option=_SORTED)


TargetValues = tuple[str, str | None, str | None, str | None, str | None]
CallValues = tuple[str, str | None, str | None, str | None, bool | None]
DecisionValues = tuple[Effect, Reason, tuple[str, ...], str | None, tuple[str, ...]]
OutcomeValues = tuple[State, str | None, int | None, str | None, bytes | None, str | None]

Told = tuple[Event, bytes, bytes, TargetValues, CallValues, DecisionValues | None, OutcomeValues | None, bytes | None]
"""An entry about a call before it is encoded: what happened; place and caller, as they are encoded; target, call,
decision and outcome by their values, with the exact digest of the call and the content of its result instead of their
keyed hashes; and the gate, as it is encoded. It is plain, so that another process can hash and encode it.
"""


def body_of(at: int, said: bytes | Told, key: ContentKey | None) -> bytes:
    """What `Entry.encode` gives, which may be there already."""
    if isinstance(said, bytes):
        return said
    assert key is not None, "contents are told to whoever has their key"  # noqa: S101 - nothing is encoded without
    event, place, caller, target, (id, turn, idempotency_key, fingerprint, is_valid), decision, outcome, gate = said
    arguments = key.arguments(fingerprint.encode()) if fingerprint else None
    body = _body(
        event,
        at,
        orjson.Fragment(place),
        caller=orjson.Fragment(caller),
        target=_target(target),
        call=call_fields(id, turn, idempotency_key, arguments, is_valid),
        decision=decision,
        gate=None if gate is None else orjson.Fragment(gate),
        outcome=None if outcome is None else _hashed(outcome, key),
    )
    return orjson.dumps(body)


def _hashed(outcome: OutcomeValues, key: ContentKey) -> dict[str, Any]:
    state, error_type, size, artifact, content, envelope = outcome
    result = None if content is None else key.result(content)
    return outcome_fields(state, error_type, size, artifact, result, envelope)


def _body(
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
    """In the order of canonical JSON, so that nothing has to be sorted."""
    body: dict[str, Any] = {"at": at}
    if call is not None:
        body["call"] = call
    if caller is not None:
        body["caller"] = caller
    if decision is not None:
        body["decision"] = _decision(decision)
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


_DECISION: Final = ("effect", "reason", "rules", "position", "observed")
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
    """As `_plain` would make it, at a quarter of the cost. Callers choose the first and the third text."""
    part: dict[str, Any] = {}
    if arguments is not None:
        part["arguments"] = arguments
    part["id"] = id if len(id) <= MAX_TEXT and id.isascii() else bounded(id)
    if idempotency_key is not None:
        part["idempotencyKey"] = bounded(idempotency_key)
    if schema_valid is not None:
        part["schemaValid"] = schema_valid
    if span_id is not None:
        part["spanId"] = span_id
    if trace_id is not None:
        part["traceId"] = trace_id
    if turn is not None:
        part["turn"] = turn if len(turn) <= MAX_TEXT and turn.isascii() else bounded(turn)
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
        part["artifact"] = bounded(artifact)
    if bytes is not None:
        part["bytes"] = bytes
    if envelope is not None:
        part["envelope"] = bounded(envelope)
    if error_type is not None:
        part["errorType"] = bounded(error_type)
    if result is not None:
        part["result"] = result
    part["state"] = state
    return part


@lru_cache(maxsize=4096)  # rules and rows are few, calls are many
def _decision(part: DecisionValues) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(_plain(_DECISION, part), option=_SORTED))


@lru_cache(maxsize=4096)  # likewise tools
def _target(part: TargetValues) -> orjson.Fragment:
    return Target(*part).fragment


def bounded(text: str) -> str:
    """The text, or the beginning of a long one with its hash; half surrogate pairs, which are no text, replaced."""
    if text.isascii() and len(text) <= MAX_TEXT:
        return text
    clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if len(clean) <= MAX_TEXT:
        return clean
    return f"{clean[:_KEPT_OF_LONG]}…sha256:{sha256(clean.encode()).hexdigest()}"


def _plain(names: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    """JSON data of what is there."""
    kept: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if value is None:
            continue
        kind = type(value)
        if kind is str:
            kept[name] = bounded(value)
        elif kind is int or kind is bool:
            kept[name] = value
        elif isinstance(value, _Lasting):
            kept[name] = value.fragment
        elif value:
            kept[name] = _items(value)
    return kept


def _items(values: Sequence[Any]) -> list[Any]:
    """Of texts some at the most; then how many there were, so that nobody takes them for all."""
    if isinstance(values[0], GateEntry):
        return [_plain(_GATE_ENTRY, value) for value in values]
    if isinstance(values[0], Mark):
        return [_plain(_MARK, value) for value in values]
    texts = [bounded(value) for value in values[:MAX_ITEMS]]
    return texts if len(values) <= MAX_ITEMS else [*texts, f"…{len(values)} in all"]
