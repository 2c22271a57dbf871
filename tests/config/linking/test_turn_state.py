"""Turn state in documents: earlier calls of cases, flags in conditions, and calls that stages leave out."""

from datetime import timedelta
from typing import Any

import pytest

from gateway.config.kinds.common_specs import UNMASKED_ARTIFACTS
from gateway.registries.diagnostics import Diagnostic
from gateway.registries.policy_cases import EarlierCall, ExpectedReason, PolicyCase
from tests.config.linking.projects import catalogue, document, linked, list_codes, pipeline, problem, snapshot_of, tool


def case_of(turn: dict[str, Any], expect: dict[str, Any] | None = None) -> PolicyCase:
    (case,) = snapshot_of(linked(tool(), catalogue(), artifact(), suite(turn, expect))).cases
    return case


def suite(turn: dict[str, Any], expect: dict[str, Any] | None = None) -> str:
    case = {
        "name": "a case",
        "as": {"subject": "user:ana"},
        "call": "order_read",
        "turn": turn,
        "expect": expect or {"decision": "allow"},
    }
    return document("PolicyTest", "t", {"given": {"catalogue": "desk", "at": "2026-11-16T10:00:00Z"}, "cases": [case]})


def artifact(**spec: Any) -> str:
    return document("ArtifactClass", "record", {"description": "A record.", "base": "json", **spec})


def rule(when: str | None = None, **check: Any) -> str:
    given = check or {"type": "loop", "sameCall": 3}
    spec = {"description": "A rule.", "match": {"tools": ["*"]}, "check": given, **({"when": when} if when else {})}
    return document("GateRule", "r", spec)


def test_case_without_a_turn_remembers_nothing() -> None:
    case = case_of({})

    assert (case.saw, case.read, case.calls) == (frozenset(), frozenset(), ())


def test_case_declares_what_its_turn_has_seen_and_done() -> None:
    call = {"tool": "order_read", "with": {"order": "A"}, "times": 3, "ago": "5m", "bytes": "1KiB"}

    case = case_of({"saw": ["egress"], "read": ["record"], "calls": [call, {"tool": "order_read"}]})

    assert (case.saw, case.read) == (frozenset({"egress"}), frozenset({"record"}))
    assert case.calls == (
        EarlierCall("order_read", {"order": "A"}, 3, timedelta(minutes=5), 1024),
        EarlierCall("order_read"),
    )


def test_case_may_expect_that_a_class_decides() -> None:
    assert case_of({}, {"decision": "deny", "because": {"class": "record"}}).because == ExpectedReason(
        "class", "record"
    )


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ({"calls": [{"tool": "order_raed"}]}, "there is no Tool 'order_raed'"),
        ({"read": ["recrod"]}, "there is no ArtifactClass 'recrod'"),
        ({"saw": ["egres"]}, "there is no TrustFlag 'egres'"),
    ],
)
def test_case_about_what_is_not_declared_is_reported(turn: dict[str, Any], message: str) -> None:
    found = problem(linked(tool(), catalogue(), artifact(), suite(turn)), "unknown-reference")

    assert (found.message, found.help is not None) == (message, True)


@pytest.mark.parametrize("times", [0, 10_001, "3"])
def test_calls_are_made_a_sensible_number_of_times(times: Any) -> None:
    turn = {"calls": [{"tool": "order_read", "times": times}]}

    assert len(list_codes(linked(tool(), catalogue(), artifact(), suite(turn)))) == 1


def flag_problem(*documents: str, environ: dict[str, str] | None = None) -> Diagnostic:
    return problem(linked(tool(), catalogue(), *documents, environ=environ), "unknown-reference")


def test_flag_that_no_tool_can_have_is_reported_where_it_stands() -> None:
    when = flag_problem(rule("turn.saw('writes') && turn.saw('egres')"))
    require = flag_problem(rule(None, type="arguments", require="turn.saw('egres')", message="no"))

    assert when.message == require.message == "there is no TrustFlag 'egres'"
    assert (when.help, when.position.width) == ("did you mean 'egress'?", len('"egres"'))


def test_flag_from_the_environment_is_not_repeated() -> None:
    found = flag_problem(rule('turn.saw("${FLAG}")'), environ={"FLAG": "hunter2"})

    assert "hunter2" not in f"{found.message} {found.help}"


def test_cache_that_skips_tools_names_the_first_of_them() -> None:
    writing = [tool(name, trust={"tier": "inner", "flags": ["writes"]}) for name in ("order_pay", "order_void")]
    stages = (pipeline(call=[{"use": "gates"}, {"use": "cache", "with": {"for": "1m", "by": ["subject"]}}]),)

    skips = problem(linked(*writing, tool(), catalogue(), stages=stages), "cache-skips")

    assert skips.message == "calls of order_pay and 1 more write, so their results are never cached"
    assert skips.severity == "warning"
    assert list_codes(linked(tool(), catalogue(), stages=stages)) == []


def test_cache_reports_nothing_about_tools_that_the_pipeline_refuses() -> None:
    writing = tool("order_pay", trust={"tier": "inner", "flags": ["writes"]})
    call = [{"use": "gates"}, {"use": "cache", "with": {"for": "1m", "by": ["subject"]}}]
    stages = (pipeline(call=call, refuses={"flags": ["writes"]}),)

    assert list_codes(linked(writing, catalogue(), stages=stages)) == ["pipeline-refuses"]


@pytest.mark.parametrize("base", sorted(UNMASKED_ARTIFACTS))
def test_masking_what_cannot_be_masked_in_parts_is_reported(base: str) -> None:
    options = {"options": {"language": "python"}} if base == "source" else {}

    assert list_codes(linked(artifact(base=base, redact=["$.a"], **options))) == ["redact-hides"]
    assert list_codes(linked(artifact(base=base, **options))) == []


@pytest.mark.parametrize("base", ["json", "yaml", "text"])
def test_masking_what_can_be_masked_is_fine(base: str) -> None:
    assert list_codes(linked(artifact(base=base, redact=["$.a"]))) == []
