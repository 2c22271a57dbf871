"""The status of a call's answer: one table, and rules for everything that can stop a call."""

import importlib
import pkgutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway as package
from gateway.audit.vocabulary import REASONS
from gateway.engine.call import Fault, fault_of
from gateway.engine.result_content import CallOutcome
from gateway.errors import GatewayError, StoreUnavailable, ToolDownstreamError
from gateway.model.schema.schema import Schema
from gateway.server.http.asgi import error_response
from gateway.server.rest.api_documentation import build_openapi, call_example
from gateway.server.rest.calls_and_turns import MEANINGS, RETRYABLE, STATUSES, Outcome, status_of
from gateway.server.rest.operation_table import OPERATIONS
from tests.server.rest.gateway import Gateway, running

pytestmark = pytest.mark.anyio

NOW = 1_767_600_000_000_000
TURN: Any = SimpleNamespace(stored=SimpleNamespace(expires=NOW + 89_500_000))
RECORD: Any = SimpleNamespace()
PENDING = {"status": "pending", "retryAfter": 7, "approvals": []}
LIMITED = {"status": "limited", "kind": "rate", "rule": "few", "retryAfter": 42}
CALLS = ("/v1/catalogues/{catalogue}/tools/{name}/call", "/v1/turns/{turn}/calls", "/v1/artifacts/{callId}/query")


def every_error() -> list[type[GatewayError]]:
    """All error classes of the package."""
    for module in pkgutil.walk_packages(package.__path__, "gateway."):
        if ".examples." not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)

    def below(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
        yield kind
        for each in kind.__subclasses__():
            yield from below(each)

    return sorted(set(below(GatewayError)), key=lambda each: each.__name__)


ERRORS = every_error()


def make_outcome(status: int = 500, **facts: Any) -> CallOutcome:
    """A call that was stopped before its tool began, unless overridden."""
    facts = {"has_begun": False, "fault": Fault("E_SOMETHING", status), **facts}
    return CallOutcome(RECORD, TURN, **facts)


def read_status(call: CallOutcome, *, is_error: bool = True) -> tuple[Outcome, int, int | None]:
    return tuple(status_of(call, {"isError": is_error}))  # type: ignore[return-value]  # a NamedTuple of these


TABLE: dict[str, tuple[CallOutcome, int, int | None]] = {
    "denied by the policy": (make_outcome(403, reason="not-permitted"), 403, None),
    "denied by a rule": (make_outcome(403, reason="rule-denied"), 403, None),
    "held with nobody to ask": (make_outcome(403, reason="rule-held"), 403, None),
    "outside its window": (make_outcome(403, reason="window-closed"), 403, None),
    "quarantined": (make_outcome(403, reason="quarantined"), 403, None),
    "definition changed": (make_outcome(403, reason="definition-changed"), 403, None),
    "configuration expired": (make_outcome(503, reason="config-expired"), 403, None),
    "approval refused": (make_outcome(403, reason="approval-refused"), 403, None),
    "approval expired": (make_outcome(408, reason="approval-expired"), 403, None),
    "approval of another call": (make_outcome(409, reason="approval-mismatch"), 403, None),
    "confirmation impossible": (make_outcome(403, reason="confirmation-impossible"), 403, None),
    "refused by a stage": (make_outcome(500), 403, None),
    "check failed for a reason of its own": (make_outcome(500, reason="check-failed"), 403, None),
    "waits for people": (make_outcome(403, reason="approval-pending", pending=PENDING), 202, 7),
    "no such tool in the turn": (make_outcome(404), 404, None),
    "invalid arguments": (make_outcome(422), 422, None),
    "rate": (make_outcome(429, reason="rate-exceeded", limited=LIMITED), 429, 42),
    "quota that holds": (make_outcome(429, reason="quota-exceeded", limited=LIMITED), 429, 42),
    "loop rule": (make_outcome(403, reason="loop-stopped"), 429, 90),
    "loop guard": (make_outcome(fault=Fault("E_LOOP_STOPPED", 429)), 429, 90),
    "budget": (make_outcome(403, reason="budget-spent"), 429, 90),
    "too many approvals": (make_outcome(429, reason="check-failed"), 429, 1),
    "too many at once": (make_outcome(429, reason="backend-spared"), 429, 1),
    "store down before the start": (make_outcome(503, reason="audit-unavailable"), 503, 1),
    "store down while counting": (make_outcome(503, reason="check-failed"), 503, 1),
    "circuit open": (make_outcome(reason="backend-spared", fault=Fault("E_BACKEND_NOT_ASKED", 503, 12)), 503, 12),
    "ran and failed": (make_outcome(502, has_begun=True), 424, None),
    "ran into a busy backend": (make_outcome(429, has_begun=True, reason="permitted"), 424, None),
    "ran, store down": (make_outcome(503, has_begun=True, reason="permitted"), 424, None),
    "ran, result not kept": (make_outcome(has_begun=True, fault=None), 424, None),
    "stopped by nothing that is known": (make_outcome(fault=None), 424, None),
    "replayed failure": (make_outcome(is_replay=True, has_begun=True, fault=None), 424, None),
    "replayed invalid arguments": (make_outcome(422, is_replay=True, has_begun=True), 422, None),
}


@pytest.mark.parametrize("case", TABLE)
def test_status_of_every_outcome(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.rest.calls_and_turns.now_microseconds", lambda: NOW)
    call, status, retry_after = TABLE[case]

    outcome, code, wait = read_status(call)

    assert (code, wait) == (status, retry_after)
    assert STATUSES[outcome] == code


def test_what_is_no_error_is_done_whatever_else_is_known() -> None:
    for call, _, _ in TABLE.values():
        assert read_status(call, is_error=False) == ("done", 200, None)


def test_table_has_every_outcome() -> None:
    outcomes = {read_status(call)[0] for call, _, _ in TABLE.values()} | {"done"}

    assert outcomes == set(STATUSES) == set(MEANINGS) == set(get_args(Outcome))
    assert len(set(STATUSES.values())) == len(STATUSES)


@given(
    status=st.sampled_from(sorted({each.status for each in ERRORS} | set(range(400, 600)))),
    wait=st.none() | st.integers(1, 100),
    reason=st.sampled_from(["", *REASONS]),
    has_begun=st.booleans(),
    is_replay=st.booleans(),
    is_error=st.booleans(),
    knows_fault=st.booleans(),
    beside=st.sampled_from([{}, {"pending": PENDING}, {"limited": LIMITED}]),
)
def test_whatever_stops_a_call(
    status: int,
    wait: int | None,
    reason: str,
    has_begun: bool,
    is_replay: bool,
    is_error: bool,
    knows_fault: bool,
    beside: dict[str, Any],
) -> None:
    fault = Fault("E_SOMETHING", status, wait) if knows_fault else None
    facts = {"reason": reason, "has_begun": has_begun, "is_replay": is_replay, "fault": fault, **beside}

    outcome, code, seconds = read_status(make_outcome(**facts), is_error=is_error)

    assert (code == 200) is not is_error
    assert (seconds is not None) == (outcome in RETRYABLE) == (code in (202, 429, 503))
    assert seconds is None or seconds >= 1
    if has_begun and is_error and not is_replay:
        assert code == 424
    if is_replay:
        assert code in (200, 422, 424)
    if code >= 500:
        assert (code, has_begun, is_replay) == (503, False, False)


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: str(each.__name__))
def test_every_error_of_the_tree_has_a_status(error: type[GatewayError]) -> None:
    made = error.__new__(error)
    made.__cause__ = None
    fault = fault_of(ToolDownstreamError(cause=made))

    before, after = read_status(make_outcome(fault=fault)), read_status(make_outcome(fault=fault, has_begun=True))

    assert fault == Fault(error.code, error.status)
    assert before[1] in (403, 404, 422, 429, 503)
    assert after == ("failed", 424, None)


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: str(each.__name__))
async def test_every_problem_with_503_states_when_to_come_again(error: type[GatewayError]) -> None:
    made = error.__new__(error)
    made.message, made.help = "no", None
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await error_response(made)({}, None, send)

    headers = dict(sent[0]["headers"])
    assert sent[0]["status"] != 503 or int(headers[b"retry-after"]) >= 1


def test_errors_that_are_not_ours_count_as_the_worst() -> None:
    assert fault_of(ToolDownstreamError(cause=KeyError("secret"))) == Fault("KeyError", 500)
    assert fault_of(ValueError("secret")) == Fault("ValueError", 500)


# --- the document ---


@pytest.mark.parametrize("path", CALLS)
def test_document_lists_each_status_with_its_schema_and_an_example(path: str) -> None:
    document = build_openapi(OPERATIONS)
    responses = document["paths"][path]["post"]["responses"]
    shapes = {
        type: Schema({"$ref": f"#/components/schemas/{name}", "components": document["components"]})
        for type, name in (("application/json", "Called"), ("application/problem+json", "Problem"))
    }

    for outcome, status in STATUSES.items():
        answer = responses[str(status)]
        content = answer["content"]["application/json"]
        assert content["schema"] == {"$ref": "#/components/schemas/Called"}
        assert content["example"] == call_example(outcome)
        assert MEANINGS[outcome] in answer["description"]
        assert ("Retry-After" in answer["headers"]) == (outcome in RETRYABLE)
    for status, answer in responses.items():
        for type, content in answer["content"].items():
            shapes[type].check(content["example"])
            assert status == "default" or type == "application/json" or content["example"]["status"] == int(status)


# --- calls that raise ---


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


@pytest.mark.parametrize("error", [StoreUnavailable(), GatewayError(), RuntimeError("a bug")], ids=repr)
async def test_error_after_the_tool_began_is_never_one_that_is_retried(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise error

    for name in ("record_call", "record_single_call"):
        monkeypatch.setattr(gateway.store, name, broken)
    async with gateway.client() as client:
        turn = (await client.post("/v1/turns", json={"catalogue": "desk"})).json()["id"]
        answers = [
            await client.post("/v1/catalogues/desk/tools/echo/call", json={"arguments": {"text": "x"}}),
            await client.post(f"/v1/turns/{turn}/calls", json={"tool": "pay", "arguments": {}}),
        ]

    read, written = answers
    assert gateway.tried.runs == ["echo", "pay"]
    assert (read.status_code, read.json()["code"]) == (424, "E_OUTCOME_NOT_RECORDED")
    assert read.json()["callId"]
    assert (written.status_code, written.json()["isError"]) == (200, False)
    assert written.json()["notRecorded"]["code"] == "E_OUTCOME_NOT_RECORDED"
    assert written.json()["callId"]
    for answer in answers:
        assert "retry-after" not in answer.headers
        assert "a bug" not in answer.text


async def test_error_before_the_tool_began_keeps_its_own_status(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise StoreUnavailable()

    for name in ("start_call", "record_call", "record_single_call", "claim_idempotency_key", "refuse"):
        monkeypatch.setattr(gateway.store, name, broken)
    async with gateway.client() as client:
        answers = [
            await client.post("/v1/catalogues/desk/tools/pay/call", json={}),
            await client.post("/v1/catalogues/desk/tools/echo/call", json={}),
            await client.post(
                "/v1/catalogues/desk/tools/echo/call",
                json={"arguments": {"text": "x"}},
                headers={"idempotency-key": "k"},
            ),
        ]

    assert gateway.tried.runs == []
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (503, "E_STORE_UNAVAILABLE")
        assert answer.headers["retry-after"] == "1"


async def test_result_that_cannot_be_shown_after_the_call_is_a_lost_outcome(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(*_: Any) -> None:
        raise StoreUnavailable("the object store is down")

    monkeypatch.setattr("gateway.server.rest.calls_and_turns.outcome_data", unreadable)
    async with gateway.client() as client:
        answer = await client.post("/v1/catalogues/desk/tools/pay/call", json={})

    assert (answer.status_code, answer.json()["code"]) == (424, "E_OUTCOME_LOST")
    assert gateway.tried.runs == ["pay"]


# --- queries ---


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"method": "grep", "arguments": {"pattern": "two"}}, 200),
        ({"method": "grep", "arguments": {"pattern": "("}}, 422),
        ({"method": "grep", "arguments": {"pattern": 7}}, 422),
        ({"method": "head", "arguments": {"n": -1}}, 422),
    ],
)
async def test_statuses_of_queries(gateway: Gateway, query: dict[str, Any], status: int) -> None:
    async with gateway.client() as client:
        made = (await client.post("/v1/catalogues/desk/tools/handle/call", json={})).json()
        path = f"/v1/artifacts/{made['callId']}/query"
        first, again = [await client.post(path, json=query, headers={"idempotency-key": "k"}) for _ in range(2)]

    assert (first.status_code, first.json()["isError"]) == (status, status != 200)
    assert (again.status_code, again.json()["isError"]) == (status, status != 200)
    assert ("replayed" in again.json()) == (status == 200)


async def test_query_that_fails_while_it_reads_is_424(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("the object store is down")

    async with gateway.client() as client:
        made = (await client.post("/v1/catalogues/desk/tools/handle/call", json={})).json()
        monkeypatch.setattr("gateway.artifacts.spooled_artifact.SpooledArtifact.head", broken)
        path = f"/v1/artifacts/{made['callId']}/query"
        first, again = [
            await client.post(path, json={"method": "head"}, headers={"idempotency-key": "k"}) for _ in range(2)
        ]

    assert [(each.status_code, each.json()["isError"]) for each in (first, again)] == [(424, True), (424, True)]
    assert "retry-after" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
