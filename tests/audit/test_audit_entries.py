"""Entries: canonical bytes without contents, whatever callers choose to call themselves."""

import json
import marshal
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_logs import ANA, NOON, PLACE, REFUND, settled

from gateway.audit.contents import ContentKey
from gateway.audit.entries import (
    MAX_ITEMS,
    MAX_TEXT,
    Caller,
    CallPart,
    Client,
    CountPart,
    DecisionPart,
    Entry,
    GateEntry,
    GatePart,
    KeyPart,
    Mark,
    ObjectPart,
    Opening,
    OutcomePart,
    Place,
    Target,
    body_of,
    bounded,
)
from gateway.audit.words import EVENTS, REASONS, Effect, Event, Reason, State
from gateway.core.canonical import canonical

KEY = ContentKey(bytes(range(32)))
DOCUMENT = Path(__file__).parents[2] / "docs" / "audit.md"

text = st.text(st.characters(), max_size=20)
maybe = st.none() | text
moments = st.integers(0, 2**53 - 1)
texts = st.lists(text, max_size=3).map(tuple)
places = st.builds(Place, text, maybe, maybe, maybe)
clients = st.builds(Client, maybe, maybe, maybe)
callers = st.builds(Caller, text, maybe, texts, maybe, maybe, maybe, st.none() | clients)
targets = st.builds(Target, text, maybe, maybe, maybe, maybe)
ids = st.none() | st.text("0123456789abcdef", max_size=64)
calls = st.builds(CallPart, text, maybe, maybe, ids, st.none() | st.booleans(), ids, ids)
decisions = st.builds(
    DecisionPart, st.sampled_from(get_args(Effect)), st.sampled_from(get_args(Reason)), texts, maybe, texts
)
outcomes = st.builds(OutcomePart, st.sampled_from(get_args(State)), maybe, st.none() | moments, maybe, ids, maybe)
words = st.builds(GateEntry, text, st.sampled_from(("grant", "refuse")), moments, maybe, maybe, maybe)
gates = st.builds(GatePart, text, maybe, st.none() | moments, st.none() | moments, st.lists(words, max_size=3))
marks = st.builds(Mark, text, moments, text)
entries = st.builds(
    Entry,
    st.sampled_from(get_args(Event)),
    moments,
    places,
    st.none() | callers,
    st.none() | targets,
    st.none() | calls,
    st.none() | decisions,
    st.none() | outcomes,
    st.none() | gates,
    st.none() | st.builds(ObjectPart, text, text, maybe, st.none() | moments),
    st.none() | st.builds(KeyPart, text, text, text, text),
    st.none() | st.builds(Opening, text, st.lists(marks, max_size=3)),
    st.none() | marks,
    st.none() | st.builds(CountPart, moments, moments, moments),
)


@given(entries)
def test_body_is_canonical_and_begins_with_its_moment(entry: Entry) -> None:
    body = entry.encode()

    assert canonical(json.loads(body)).encode() == body
    assert body.startswith(b'{"at":%d,' % entry.at)
    assert b"\n" not in body


@given(entries, ids, st.none() | st.binary(max_size=20))
def test_entry_that_is_told_by_its_values_is_hashed_and_encoded_alike(
    entry: Entry, checksum: str | None, content: bytes | None
) -> None:
    caller, target = entry.caller or ANA, entry.target or REFUND
    call = entry.call or CallPart("call")
    told: Any = (
        entry.event,
        entry.place.encoded,
        caller.encoded,
        (target.tool, target.catalogue, target.identity, target.definition, target.tier),
        (call.id, call.turn, call.idempotency_key, checksum, call.schema_valid),
        entry.decision and tuple(entry.decision),
        entry.outcome and tuple(entry.outcome._replace(result=content)),  # type: ignore[arg-type]  # it is hashed below
        entry.gate and entry.gate.encode(),
    )
    arguments = KEY.arguments(checksum.encode()) if checksum else None
    result = None if content is None else KEY.result(content)
    whole = Entry(
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

    assert body_of(entry.at, marshal.loads(marshal.dumps(told)), KEY) == whole
    assert body_of(entry.at, whole, None) is whole


@given(entries)
def test_entry_says_what_it_was_given(entry: Entry) -> None:
    body = json.loads(entry.encode())

    assert (body["event"], body["at"], body["v"]) == (entry.event, entry.at, 2)
    assert (entry.caller is None) == ("caller" not in body)
    if entry.caller is not None:
        assert body["caller"]["subject"] == bounded(entry.caller.subject)
    if entry.decision is not None:
        assert body["decision"].get("rules", []) == list(map(bounded, entry.decision.rules))
    if entry.opened is not None:
        assert len(body["log"]["opened"].get("predecessors", [])) == len(entry.opened.predecessors)


def test_whole_entry_is_what_the_document_shows() -> None:
    body = settled(2).encode().decode()

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


def test_approval_tells_who_decided_and_what_they_were_shown() -> None:
    word = GateEntry("user:kim", "grant", NOON, shown="a" * 64, note="fine")
    gate = GatePart("ap_1", "b" * 64, NOON - 5, NOON + 5, (word,))

    body = json.loads(Entry("approval-granted", NOON, PLACE, ANA, REFUND, gate=gate).encode())

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
        pytest.param(lambda: Entry("call-decided", 1, PLACE, call=CallPart(LONG)), ("call", "id"), id="call"),
        pytest.param(lambda: Entry("call-decided", 1, PLACE, call=CallPart("c", LONG)), ("call", "turn"), id="turn"),
        pytest.param(
            lambda: Entry("call-decided", 1, PLACE, call=CallPart("c", None, LONG)),
            ("call", "idempotencyKey"),
            id="key",
        ),
        pytest.param(lambda: Entry("call-decided", 1, PLACE, target=Target(LONG)), ("target", "tool"), id="tool"),
        pytest.param(lambda: Entry("call-decided", 1, PLACE, Caller(LONG)), ("caller", "subject"), id="subject"),
        pytest.param(
            lambda: Entry("quarantine-added", 1, PLACE, object=ObjectPart("tool", "t", LONG)),
            ("object", "note"),
            id="note",
        ),
    ],
)
def test_long_text_is_cut_with_its_hash(entry: Callable[[], Entry], path: tuple[str, str]) -> None:
    body = entry().encode()

    kept = json.loads(body)[path[0]][path[1]]
    assert len(body) < 1000
    assert kept.startswith("x" * 128 + "…sha256:")
    assert kept != bounded(LONG + "x")


def test_many_roles_are_cut_with_their_number() -> None:
    caller = Caller("user:ana", roles=[f"role:{number}" for number in range(1000)])

    roles = json.loads(Entry("call-decided", 1, PLACE, caller).encode())["caller"]["roles"]

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
    assert bounded(given) == kept


@pytest.mark.parametrize(("words", "told"), [(Event, EVENTS), (Reason, REASONS)], ids=["events", "reasons"])
def test_every_word_is_documented(words: Any, told: dict[str, str]) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")

    assert set(get_args(words)) == set(told)
    assert [word for word, meaning in told.items() if f"| `{word}` | {meaning} |" not in document] == []
