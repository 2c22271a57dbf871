"""Entries: canonical bytes without contents, whatever names callers choose."""

import json
import marshal
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.content_hash import ContentKey
from gateway.audit.entries import (
    MAX_ITEMS,
    MAX_TEXT,
    AuditApproval,
    AuditCall,
    AuditCaller,
    AuditClient,
    AuditDecision,
    AuditEntry,
    AuditKeyRotation,
    AuditObject,
    AuditOrigin,
    AuditOutcome,
    AuditTarget,
    AuditVote,
    ChainPosition,
    CountPart,
    ShardOpening,
    encode_entry,
    truncate,
)
from gateway.audit.vocabulary import EVENTS, REASONS, Effect, Event, Reason, State
from gateway.model.primitives.canonical_json import canonical
from tests.audit.sample_logs import ANA, NOON, PLACE, REFUND, sample_entries
from tests.support.paths import ROOT

KEY = ContentKey(bytes(range(32)))
DOCUMENT = ROOT / "docs" / "audit.md"

text = st.text(st.characters(), max_size=20)
maybe = st.none() | text
moments = st.integers(0, 2**53 - 1)
texts = st.lists(text, max_size=3).map(tuple)
places = st.builds(AuditOrigin, text, maybe, maybe, maybe)
clients = st.builds(AuditClient, maybe, maybe, maybe)
callers = st.builds(AuditCaller, text, maybe, texts, maybe, maybe, maybe, st.none() | clients)
targets = st.builds(AuditTarget, text, maybe, maybe, maybe, maybe)
ids = st.none() | st.text("0123456789abcdef", max_size=64)
calls = st.builds(AuditCall, text, maybe, maybe, ids, st.none() | st.booleans(), ids, ids)
decisions = st.builds(
    AuditDecision, st.sampled_from(get_args(Effect)), st.sampled_from(get_args(Reason)), texts, maybe, texts
)
outcomes = st.builds(AuditOutcome, st.sampled_from(get_args(State)), maybe, st.none() | moments, maybe, ids, maybe)
words = st.builds(AuditVote, text, st.sampled_from(("grant", "refuse")), moments, maybe, maybe, maybe)
gates = st.builds(AuditApproval, text, maybe, st.none() | moments, st.none() | moments, st.lists(words, max_size=3))
marks = st.builds(ChainPosition, text, moments, text)
entries = st.builds(
    AuditEntry,
    st.sampled_from(get_args(Event)),
    moments,
    places,
    st.none() | callers,
    st.none() | targets,
    st.none() | calls,
    st.none() | decisions,
    st.none() | outcomes,
    st.none() | gates,
    st.none() | st.builds(AuditObject, text, text, maybe, st.none() | moments),
    st.none() | st.builds(AuditKeyRotation, text, text, text, text),
    st.none() | st.builds(ShardOpening, text, st.lists(marks, max_size=3)),
    st.none() | marks,
    st.none() | st.builds(CountPart, moments, moments, moments),
)


@given(entries)
def test_body_is_canonical_and_begins_with_its_moment(entry: AuditEntry) -> None:
    body = entry.encode()

    assert canonical(json.loads(body)).encode() == body
    assert body.startswith(b'{"at":%d,' % entry.at)
    assert b"\n" not in body


@given(entries, ids, st.none() | st.binary(max_size=20))
def test_entry_given_by_its_values_is_hashed_and_encoded_alike(
    entry: AuditEntry, checksum: str | None, content: bytes | None
) -> None:
    caller, target = entry.caller or ANA, entry.target or REFUND
    call = entry.call or AuditCall("call")
    values: Any = (
        entry.event,
        entry.place.encoded,
        caller.encoded,
        (target.tool, target.catalogue, target.identity, target.definition, target.tier),
        (call.id, call.turn, call.idempotency_key, checksum, call.schema_valid),
        entry.decision and tuple(entry.decision),
        entry.outcome and tuple(entry.outcome._replace(result=content)),  # type: ignore[arg-type]  # hashed below
        entry.gate and entry.gate.encode(),
    )
    arguments = KEY.arguments(checksum.encode()) if checksum else None
    result = None if content is None else KEY.result(content)
    whole = AuditEntry(
        entry.event,
        entry.at,
        entry.place,
        caller,
        target,
        call._replace(arguments=arguments, trace_id=None, span_id=None),
        entry.decision,
        entry.outcome and entry.outcome._replace(result=result),
        entry.gate,
    ).encode()

    assert encode_entry(entry.at, marshal.loads(marshal.dumps(values)), KEY) == whole
    assert encode_entry(entry.at, whole, None) is whole


@given(entries)
def test_entry_contains_what_it_was_given(entry: AuditEntry) -> None:
    body = json.loads(entry.encode())

    assert (body["event"], body["at"], body["v"]) == (entry.event, entry.at, 2)
    assert (entry.caller is None) == ("caller" not in body)
    if entry.caller is not None:
        assert body["caller"]["subject"] == truncate(entry.caller.subject)
    if entry.decision is not None:
        assert body["decision"].get("rules", []) == list(map(truncate, entry.decision.rules))
    if entry.opened is not None:
        assert len(body["log"]["opened"].get("predecessors", [])) == len(entry.opened.predecessors)


def test_whole_entry_is_what_the_document_shows() -> None:
    body = sample_entries(2).encode().decode()

    assert json.loads(body) == {
        "at": NOON + 2000,
        "call": {"arguments": "f" * 64, "id": "call-2", "schemaValid": True, "turn": "turn-1"},
        "caller": {
            "authMethod": "jwt",
            "client": {"name": "desk", "version": "1.2"},
            "issuer": "https://idp.example",
            "roles": ["role:clerk"],
            "subject": "user:ana",
            "tenant": "acme",
            "token": "d" * 64,
        },
        "decision": {
            "effect": "allow",
            "position": "policies/policy.csv:12",
            "reason": "permitted",
            "rules": ["policies/policy.csv:12"],
        },
        "event": "call-settled",
        "outcome": {"bytes": 120, "envelope": "internal", "result": "9" * 64, "state": "ok"},
        "place": {
            "configRevision": "c" * 64,
            "contentKey": "0123456789abcdef",
            "node": "gw-1",
            "policyRevision": "p" * 64,
        },
        "target": {
            "catalogue": "desk",
            "definition": "e" * 64,
            "identity": "native/order_refund",
            "tier": "internal",
            "tool": "order_refund",
        },
        "v": 2,
    }


def test_approval_names_who_decided_and_what_they_were_shown() -> None:
    word = AuditVote("user:kim", "grant", NOON, shown="a" * 64, note="fine")
    gate = AuditApproval("ap_1", "b" * 64, NOON - 5, NOON + 5, (word,))

    body = json.loads(AuditEntry("approval-granted", NOON, PLACE, ANA, REFUND, gate=gate).encode())

    assert body["gate"] == {
        "approval": "ap_1",
        "digest": "b" * 64,
        "entries": [{"approver": "user:kim", "at": NOON, "note": "fine", "shown": "a" * 64, "verdict": "grant"}],
        "expiresAt": NOON + 5,
        "requestedAt": NOON - 5,
    }


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        pytest.param(lambda: AuditEntry("call-decided", 1, PLACE, call=AuditCall(LONG)), ("call", "id"), id="call"),
        pytest.param(
            lambda: AuditEntry("call-decided", 1, PLACE, call=AuditCall("c", LONG)), ("call", "turn"), id="turn"
        ),
        pytest.param(
            lambda: AuditEntry("call-decided", 1, PLACE, call=AuditCall("c", None, LONG)),
            ("call", "idempotencyKey"),
            id="key",
        ),
        pytest.param(
            lambda: AuditEntry("call-decided", 1, PLACE, target=AuditTarget(LONG)), ("target", "tool"), id="tool"
        ),
        pytest.param(
            lambda: AuditEntry("call-decided", 1, PLACE, AuditCaller(LONG)), ("caller", "subject"), id="subject"
        ),
        pytest.param(
            lambda: AuditEntry("quarantine-added", 1, PLACE, object=AuditObject("tool", "t", LONG)),
            ("object", "note"),
            id="note",
        ),
    ],
)
def test_long_text_is_cut_with_its_hash(entry: Callable[[], AuditEntry], path: tuple[str, str]) -> None:
    body = entry().encode()

    kept = json.loads(body)[path[0]][path[1]]
    assert len(body) < 1000
    assert kept.startswith("x" * 128 + "…sha256:")
    assert kept != truncate(LONG + "x")


def test_many_roles_are_cut_with_their_number() -> None:
    caller = AuditCaller("user:ana", roles=[f"role:{number}" for number in range(1000)])

    roles = json.loads(AuditEntry("call-decided", 1, PLACE, caller).encode())["caller"]["roles"]

    assert len(roles) == MAX_ITEMS + 1
    assert roles[-1] == "…1000 in all"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        pytest.param("Ana Núñez 🦊", "Ana Núñez 🦊", id="not-ascii"),
        pytest.param("\ud83e\udd8a", "🦊", id="pair"),
        pytest.param("a\ud800b", "a\ufffdb", id="half-a-pair"),
        pytest.param("é" * MAX_TEXT, "é" * MAX_TEXT, id="as-long-as-may-be"),
    ],
)
def test_text_is_kept_as_text(given: str, kept: str) -> None:
    assert truncate(given) == kept


@pytest.mark.parametrize(("words", "values"), [(Event, EVENTS), (Reason, REASONS)], ids=["events", "reasons"])
def test_every_word_is_documented(words: Any, values: dict[str, str]) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")

    assert set(get_args(words)) == set(values)
    assert [word for word, meaning in values.items() if f"| `{word}` | {meaning} |" not in document] == []
