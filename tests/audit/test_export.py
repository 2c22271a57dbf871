"""Export: lines that verify again, and events that no caller can forge by choosing a name."""

import json
import re
from collections.abc import Iterable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.chain import Chain, ChainRow
from gateway.audit.entries import (
    AuditApproval,
    AuditCall,
    AuditCaller,
    AuditClient,
    AuditDecision,
    AuditEntry,
    AuditObject,
    AuditOrigin,
    AuditOutcome,
    AuditTarget,
    AuditVote,
    ChainPosition,
    CountPart,
)
from gateway.audit.export import MAPPING_VERSION, OCSF_VERSION, ExportFilter, Format, export_entries
from gateway.audit.json_lines import UnreadableLog
from gateway.audit.verification import verify
from gateway.audit.vocabulary import Event
from gateway.model.primitives.canonical_json import canonical
from tests.audit.sample_logs import ANA, NOON, PLACE, REFUND, Lines, StoredAnchors, log, sample_entries
from tests.support.paths import ROOT

hostile = st.text(
    st.sampled_from("ab=|\\ \n\r\t\x00\x1b\u2028\u0085\u202e\ufeffé🦊") | st.characters(codec="utf-8"), max_size=12
)


def row_of_entry(entry: AuditEntry) -> ChainRow:
    chain = Chain("alpha")
    chain.open(PLACE, at=NOON)
    return chain.append([(entry.at, entry.encode())])[0]


def lines(rows: Iterable[ChainRow], format: Format, selection: ExportFilter | None = None) -> list[bytes]:
    return list(export_entries(rows, format, version="1.2.3", selection=selection or ExportFilter()))


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), text)


def cut(text: str, starts: list[int], ends: list[int]) -> list[str]:
    return [unescaped(text[start:end]) for start, end in zip(starts, ends, strict=True)]


def read_cef(line: bytes) -> tuple[list[str], dict[str, str]]:
    """Parse CEF: seven header fields, then keys with values up to the next key."""
    text = line.decode().removesuffix("\n")
    plain = re.sub(r"\\.", "__", text)  # of the same length, without escape sequences
    bars = [found.start() for found in re.finditer(r"\|", plain)][:7]
    keys = list(re.finditer(r"(?:(?<=\|)| )([A-Za-z0-9]+)=", plain[bars[-1] :]))
    header = cut(text, [0, *(bar + 1 for bar in bars[:-1])], bars)
    starts = [bars[-1] + found.end() for found in keys]
    ends = [*(bars[-1] + found.start() for found in keys[1:]), len(text)]
    return header, dict(zip((found[1] for found in keys), cut(text, starts, ends), strict=True))


def shown(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\r" else f"<U+{ord(c):04X}>" for c in text)


def test_exported_lines_verify_again() -> None:
    rows = log()

    report = verify(Lines(lines(rows, "jsonl")))

    assert report.is_good
    assert report.entries == 8


def test_choice_of_lines_is_still_what_was_hashed() -> None:
    chosen = lines(log(), "jsonl", ExportFilter(since=NOON + 4000, until=NOON + 6000))

    assert chosen == lines(log()[3:5], "jsonl")


def test_entry_is_exported_as_cef() -> None:
    header, extension = read_cef(lines([log()[1]], "cef")[0])

    assert header == ["CEF:0", "agent-gateway", "agent-gateway", "1.2.3", "call-settled", "call settled", "2"]
    assert extension == {
        "rt": str(NOON // 1000 + 2),
        "externalId": "alpha:2",
        "dvchost": "gw-1",
        "act": "allow",
        "outcome": "ok",
        "reason": "permitted",
        "suser": "user:ana",
        "spriv": "role:clerk",
        "requestClientApplication": "desk",
        "msg": "policies/policy.csv:12",
        "cs1Label": "tool",
        "cs1": "order_refund",
        "cs2Label": "catalogue",
        "cs2": "desk",
        "cs3Label": "tenant",
        "cs3": "acme",
        "cs4Label": "call",
        "cs4": "call-2",
        "cs5Label": "rules",
        "cs5": "policies/policy.csv:12",
        "cs6Label": "hash",
        "cs6": log()[1].hash.hex(),
        "gatewayAuthMethod": "jwt",
        "flexString1Label": "issuer",
        "flexString1": "https://idp.example",
        "flexString2Label": "token",
        "flexString2": "d" * 64,
    }


@given(hostile, hostile, hostile, hostile)
def test_no_name_breaks_out_of_cef(tool: str, subject: str, note: str, node: str) -> None:
    entry = AuditEntry(
        "quarantine-added",
        NOON,
        AuditOrigin(node),
        AuditCaller(subject),
        AuditTarget(tool),
        object=AuditObject("tool", "x", note),
    )

    line = lines([row_of_entry(entry)], "cef")[0]

    header, extension = read_cef(line)
    assert len(line.decode().splitlines()) == 1
    assert header[4:] == ["quarantine-added", "quarantine added", "8"]
    given = {"dvchost": node, "suser": subject, "msg": note, "cs1": tool or "x"}
    assert {key: extension.get(key, "") for key in given} == {key: shown(value) for key, value in given.items()}
    assert set(extension) <= {"rt", "externalId", "cs1Label", "cs6Label", "cs6", *given}


@given(hostile)
def test_no_version_or_event_breaks_out_of_a_cef_header(text: str) -> None:
    row = log()[1]._replace(body=canonical({"at": 1, "event": f"call-{text}"}).encode())

    [line] = export_entries([row], "cef", version=text)

    escaped = "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)
    header, extension = read_cef(line)
    assert len(line.decode().splitlines()) == 1
    assert header == [
        "CEF:0",
        "agent-gateway",
        "agent-gateway",
        escaped,
        f"call-{escaped}",
        f"call {escaped.replace('-', ' ')}",
        "2",
    ]
    assert set(extension) == {"rt", "externalId", "cs6Label", "cs6"}


@given(hostile, hostile)
def test_no_name_breaks_out_of_ocsf(tool: str, subject: str) -> None:
    entry = sample_entries(3)._replace(caller=AuditCaller(subject), target=AuditTarget(tool))

    line = lines([row_of_entry(entry)], "ocsf")[0]

    event = json.loads(line)
    assert line.count(b"\n") == 1
    assert event["resources"][0]["name"] == (tool or "unknown")
    assert event["actor"]["user"]["uid"] == (subject or "unknown")


def event_of(entry: AuditEntry) -> dict[str, Any]:
    found = json.loads(lines([row_of_entry(entry)], "ocsf")[0])
    assert isinstance(found, dict)
    return found


def test_call_is_an_api_activity() -> None:
    caller = AuditCaller("user:ana", "acme", ("role:clerk",), client=AuditClient("desk", address="192.0.2.7"))
    entry = sample_entries(2)._replace(caller=caller, outcome=AuditOutcome("error", "unavailable"))

    event = event_of(entry)

    assert (event["class_uid"], event["category_uid"], event["activity_id"], event["type_uid"]) == (6003, 6, 99, 600399)
    assert event["api"] == {
        "operation": "tools/call",
        "service": {"name": "desk"},
        "request": {"uid": "call-2"},
        "response": {"error": "unavailable"},
    }
    assert event["src_endpoint"] == {"ip": "192.0.2.7"}
    assert event["actor"] == {
        "user": {"uid": "user:ana", "name": "user:ana", "groups": [{"name": "role:clerk"}]},
        "app_name": "desk",
    }
    assert event["resources"] == [{"name": "order_refund", "type": "tool", "uid": "native/order_refund"}]
    assert (event["status_id"], event["status_code"], event["action_id"]) == (2, "unavailable", 1)
    assert event["time"] == NOON // 1000 + 2
    assert event["metadata"] == {
        "version": OCSF_VERSION,
        "product": {"name": "agent-gateway", "vendor_name": "agent-gateway", "version": "1.2.3"},
        "uid": "alpha:2",
        "sequence": 2,
        "event_code": "call-settled",
        "correlation_uid": "call-2",
        "tenant_uid": "acme",
        "profiles": ["security_control"],
    }


@pytest.mark.parametrize(
    ("effect", "action", "disposition"),
    [
        ("allow", (1, "Allowed"), (1, "Allowed")),
        ("hold", (99, "Held"), (99, "Held")),
        ("deny", (2, "Denied"), (2, "Blocked")),
    ],
)
def test_decision_is_an_authorisation(effect: Any, action: tuple[int, str], disposition: tuple[int, str]) -> None:
    event = event_of(
        AuditEntry("call-decided", NOON, PLACE, ANA, REFUND, decision=AuditDecision(effect, "not-permitted"))
    )

    assert (event["class_uid"], event["category_uid"]) == (3003, 3)
    assert (event["action_id"], event["action"]) == action
    assert (event["disposition_id"], event["disposition"]) == disposition
    assert event["user"]["uid"] == event["actor"]["user"]["uid"] == "user:ana"
    assert event["privileges"] == ["call native/order_refund"]


def test_approver_is_who_acted() -> None:
    gate = AuditApproval("ap_1", entries=(AuditVote("user:kim", "grant", NOON),))
    entry = AuditEntry("approval-granted", NOON, PLACE, ANA, REFUND, gate=gate)

    event = event_of(entry)

    assert (event["activity_id"], event["actor"]["user"]["uid"], event["user"]["uid"]) == (1, "user:kim", "user:ana")
    assert read_cef(lines([row_of_entry(entry)], "cef")[0])[1]["duser"] == "user:kim"


@pytest.mark.parametrize(
    ("entry", "entity"),
    [
        (
            AuditEntry("quarantine-added", NOON, PLACE, ANA, object=AuditObject("tool", "tool:order_refund", "leaks")),
            {"name": "tool:order_refund", "type": "tool", "uid": "tool:order_refund"},
        ),
        (
            AuditEntry("log-pruned", NOON, PLACE, pruned=ChainPosition("beta", 4, "00")),
            {"name": "beta", "type": "log", "uid": "beta"},
        ),
        (AuditEntry("config-published", NOON, PLACE), {"name": "c" * 64, "type": "config", "uid": "c" * 64}),
        (AuditEntry("token-revoked", NOON, AuditOrigin("gw")), {"name": "unknown", "type": "token", "uid": "unknown"}),
    ],
    ids=["quarantine", "pruning", "configuration", "nothing-known"],
)
def test_what_operators_do_is_entity_management(entry: AuditEntry, entity: dict[str, str]) -> None:
    event = event_of(entry)

    assert (event["class_uid"], event["entity"]) == (3004, entity)
    assert event.get("comment", "leaks") == "leaks"


def test_start_is_application_lifecycle() -> None:
    event = event_of(AuditEntry("gateway-started", NOON, PLACE))

    assert (event["class_uid"], event["activity_id"], event["app"]["version"]) == (6002, 3, "1.2.3")


@pytest.mark.parametrize("event", get_args(Event))
def test_every_event_has_a_class_and_loses_nothing(event: Event) -> None:
    row = row_of_entry(sample_entries(2)._replace(event=event))

    escaped = json.loads(lines([row], "ocsf")[0])

    assert escaped["activity_name"] != "Other"
    assert escaped["type_uid"] == escaped["class_uid"] * 100 + escaped["activity_id"]
    own = escaped["unmapped"]["gateway"]
    assert (own["mapping"], own["hash"], own["prev"]) == (MAPPING_VERSION, row.hash.hex(), row.prev.hex())
    assert canonical(own["entry"]).encode() == row.body


@pytest.mark.parametrize(
    ("reason", "severity"), [("permitted", 1), ("approval-mismatch", 4), ("quarantined", 4)], ids=str
)
def test_grave_reasons_stand_out(reason: Any, severity: int) -> None:
    effect: Any = "allow" if reason == "permitted" else "deny"

    assert (
        event_of(AuditEntry("call-decided", NOON, PLACE, decision=AuditDecision(effect, reason)))["severity_id"]
        == severity
    )


def test_entry_of_a_newer_gateway_is_still_exported() -> None:
    body = canonical({"at": NOON, "event": "moon-landed", "caller": 7, "gate": {"entries": [7]}, "target": {"tool": 7}})
    row = log()[1]._replace(body=body.encode())

    event = json.loads(lines([row], "ocsf")[0])

    assert (event["class_uid"], event["activity_name"], event["entity"]["type"]) == (3004, "Other", "moon")
    assert read_cef(lines([row], "cef")[0])[0][4] == "moon-landed"


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        pytest.param(ExportFilter(tenant="acme"), list(range(2, 9)), id="tenant"),
        pytest.param(ExportFilter(tenant="other"), [], id="other-tenant"),
        pytest.param(ExportFilter(tool="order_refund"), list(range(2, 9)), id="tool"),
        pytest.param(ExportFilter(tool="native/order_refund"), list(range(2, 9)), id="identity"),
        pytest.param(ExportFilter(tool="other"), [], id="other-tool"),
        pytest.param(ExportFilter(since=NOON + 7000), [7, 8], id="since"),
        pytest.param(ExportFilter(until=NOON + 3000), [1, 2], id="until"),
        pytest.param(
            ExportFilter(since=NOON + 3000, until=NOON + 5000, tenant="acme", tool="order_refund"), [3, 4], id="all"
        ),
    ],
)
def test_choice_is_by_time_tenant_and_tool(selection: ExportFilter, numbers: list[int]) -> None:
    escaped = [json.loads(line)["metadata"]["sequence"] for line in lines(log(), "ocsf", selection)]

    assert escaped == numbers


@pytest.mark.parametrize("body", [b"{}", b"no json", b'{"at":"noon","event":"x"}', b'{"at":1,"event":2}'])
def test_entry_that_cannot_be_read_is_named(body: bytes) -> None:
    rows = StoredAnchors([log()[0], log()[1]._replace(body=body)])

    with pytest.raises(UnreadableLog, match="entry alpha:2 cannot be read"):
        lines(rows, "cef")
    assert len(lines(rows, "jsonl")) == 2


def test_versions_of_the_mapping_are_documented() -> None:
    document = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")

    assert f"OCSF {OCSF_VERSION}" in document
    assert f'`unmapped.gateway.mapping` is `"{MAPPING_VERSION}"`' in document


def test_call_of_an_unknown_caller_has_an_endpoint_all_the_same() -> None:
    event = event_of(AuditEntry("call-unknown", NOON, PLACE, call=AuditCall("c")))

    assert event["src_endpoint"] == {"name": "unknown"}
    assert event["api"]["service"] == {"name": "agent-gateway"}


def test_number_of_counted_refusals_is_exported() -> None:
    entry = AuditEntry(
        "refusals-counted",
        NOON,
        PLACE,
        AuditCaller("user:ana"),
        decision=AuditDecision("deny", "not-permitted"),
        counted=CountPart(240, NOON, NOON + 60_000_000),
    )
    row = row_of_entry(entry)

    escaped = json.loads(lines([row], "ocsf")[0])
    assert (escaped["count"], escaped["activity_name"], escaped["severity_id"]) == (240, "Count refusals", 3)
    assert b" cnt=240 " in lines([row], "cef")[0]
