"""The table of kinds, and problems: all of them at once, with exact paths."""

from copy import deepcopy
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.kinds.validation import CODES, KINDS, ShapeProblem, validate_document
from gateway.config.overlays import OverlayKind
from tests.config.kinds.example_documents import DOCUMENTS, changed, example, without

TICKET = "Tool-ticket_create"


def only(document: Any) -> ShapeProblem:
    model, problems = validate_document(document)

    assert model is None
    assert len(problems) == 1
    return problems[0]


def test_table_lists_all_kinds() -> None:
    assert list(KINDS) == [kind.name for kind in KINDS.values()]
    assert len(KINDS) == len({kind.plural for kind in KINDS.values()}) == 17
    assert all("\n" not in kind.summary and kind.summary.endswith(".") for kind in KINDS.values())


def test_overlays_may_change_every_kind_of_declaration() -> None:
    assert set(get_args(OverlayKind)) == KINDS.keys() - {"Overlay", "PolicyTest", "Attestation"}


def test_only_flags_and_tiers_need_no_owner() -> None:
    assert {kind.name for kind in KINDS.values() if not kind.needs_owner} == {"TrustFlag", "TrustTier"}


def test_missing_owner_is_a_problem_of_metadata() -> None:
    problem = only(without(TICKET, "metadata.owner"))

    assert (problem.code, problem.path, problem.at_key) == ("missing-field", ("metadata",), True)
    assert problem.message == "metadata needs 'owner'"


def test_unknown_kind_suggests_a_near_one() -> None:
    problem = only(changed(TICKET, "kind", "GateRul"))

    assert problem == ShapeProblem("unknown-kind", ("kind",), "there is no kind 'GateRul'", "did you mean 'GateRule'?")


@pytest.mark.parametrize("kind", [5, None, ["Tool"], {}, True, "x" * 100_000])
def test_hostile_kind_is_unknown(kind: Any) -> None:
    problem = only(changed(TICKET, "kind", kind))

    assert problem.code == "unknown-kind"
    assert len(problem.message) < 120


def test_unknown_version_names_the_known_one() -> None:
    problem = only(changed(TICKET, "apiVersion", "gateway/v2"))

    assert problem == ShapeProblem(
        "unknown-version", ("apiVersion",), "there is no version 'gateway/v2'", "write gateway/v1"
    )


@pytest.mark.parametrize("version", [1, None, ["gateway/v1"]])
def test_version_of_a_wrong_type_is_unknown(version: Any) -> None:
    assert only(changed(TICKET, "apiVersion", version)).code == "unknown-version"


def test_document_without_kind_and_with_a_wrong_version_has_two_problems() -> None:
    _, problems = validate_document({"apiVersion": "v1"})

    assert [problem.code for problem in problems] == ["unknown-version", "missing-field"]


@pytest.mark.parametrize("data", [None, [], "x", 5, True], ids=repr)
def test_document_that_is_no_mapping_is_refused(data: Any) -> None:
    assert only(data).code == "wrong-type"


def test_bare_envelope_lists_everything_that_is_missing() -> None:
    _, problems = validate_document({"kind": "Tool"})

    assert [problem.message for problem in problems] == [
        "the document needs 'apiVersion'",
        "the document needs 'metadata'",
        "the document needs 'spec'",
    ]


PROBLEMS = [
    (TICKET, "spec.limits.max_output", "1MiB", "unknown-field", "did you mean 'maxOutput'?", True),
    (TICKET, "spec.backend.auth.tokn", {}, "unknown-field", "did you mean 'token'?", True),
    (TICKET, "spec.backend.http", {}, "unknown-field", "fields here: type, method, url, headers, query,", True),
    (TICKET, "spec.limits.timeout", "10 seconds", "bad-duration", None, False),
    (TICKET, "spec.limits.timeout", 10, "wrong-type", "write a number and a unit", False),
    (TICKET, "spec.limits.maxOutput", "big", "bad-size", None, False),
    (TICKET, "spec.limits.concurrent", "8", "wrong-type", None, False),
    (TICKET, "spec.limits.concurrent", 8.0, "wrong-type", None, False),
    (TICKET, "spec.limits.concurrent", True, "wrong-type", None, False),
    (TICKET, "spec.limits.concurrent", 0, "wrong-value", None, False),
    (TICKET, "spec.limits", None, "wrong-type", None, False),
    (TICKET, "spec.limits", [], "wrong-type", None, False),
    (TICKET, "spec.trust.reviewed.date", "yesterday", "bad-date", None, False),
    (TICKET, "spec.trust.trusted", 1, "wrong-type", None, False),
    (TICKET, "spec.trust.trusted", "true", "wrong-type", None, False),
    (TICKET, "spec.trust.flags.0", "a b", "bad-name", None, False),
    (TICKET, "spec.trust.flags", "writes", "wrong-type", None, False),
    (TICKET, "spec.onCollision", "trow", "wrong-value", "did you mean 'throw'?", False),
    (TICKET, "spec.onCollision", 5, "wrong-type", None, False),
    (TICKET, "spec.backend.type", "htp", "wrong-value", "did you mean 'http'?", False),
    (TICKET, "spec.backend.type", None, "wrong-type", None, False),
    (TICKET, "spec.backend.errors.499", "gone", "wrong-value", None, False),
    (TICKET, "spec.backend.errors.200", "failed", "wrong-value", None, True),
    (TICKET, "spec.backend", [], "wrong-type", None, False),
    (TICKET, "metadata.name", "a b", "bad-name", None, False),
    (TICKET, "metadata.labels.a b", "x", "bad-name", None, True),
    (TICKET, "metadata.labels.system", 5, "wrong-type", None, False),
    ("Telemetry-default", "spec.traces.exporter.type", "otlp", "wrong-value", None, False),
    ("Telemetry-default", "spec.traces.sample.ratio", 1.5, "wrong-value", None, False),
    ("Telemetry-default", "spec.traces.sample.always.2", "hold", "wrong-value", "did you mean 'held'?", False),
    ("IdentityProvider-ci-agents", "spec.tokens.0.sha256.fromenv", "X", "unknown-field", "did you mean", True),
    ("IdentityProvider-corp", "spec.algorithms.0", "HS256", "wrong-value", None, False),
    ("IdentityProvider-corp", "spec.algorithms.0", "none", "wrong-value", None, False),
    ("GateRule-deploy-hours", "spec.check.open.1.days.0", "friday", "wrong-value", "did you mean 'fri'?", False),
    ("ArtifactClass-ticket", "spec.queries", "some", "wrong-value", None, False),
    ("ArtifactClass-ticket", "spec.queries", [], "wrong-value", None, False),
    ("ArtifactClass-ticket", "spec.queries", ["a b"], "bad-name", None, False),
    ("Tool-disk_usage", "spec.backend.env.TOKEN.fromFile", 5, "wrong-type", None, False),
    ("Tool-disk_usage", "spec.backend.env.LANG", 5, "wrong-type", "put it in quotes", False),
    ("PolicyTest-engineering", "spec.cases.3.as.roles.0", "finance-lead", "bad-name", None, False),
    ("PolicyTest-engineering", "spec.cases.1.discover", 1, "wrong-value", None, False),
]


@pytest.mark.parametrize(
    ("name", "path", "value", "code", "help", "at_key"),
    PROBLEMS,
    ids=[f"{row[1]}-{row[2]!r}"[:60] for row in PROBLEMS],
)
def test_problem_stands_at_its_exact_path(
    name: str, path: str, value: Any, code: str, help: str | None, at_key: bool
) -> None:
    problem = only(changed(name, path, value))

    expected = tuple(int(part) if part.isdigit() else part for part in path.split("."))
    if name == "ArtifactClass-ticket" and value == ["a b"]:
        expected = (*expected, 0)
    assert (problem.code, problem.path, problem.at_key) == (code, expected, at_key)
    assert (problem.help or "").startswith(help or "")
    assert problem.message[0].islower() or problem.message[0] in "'\""
    assert not problem.message.endswith(".")


def test_union_tag_that_is_missing_lists_the_choices() -> None:
    problem = only(without(TICKET, "spec.backend.auth.scheme"))

    assert problem == ShapeProblem(
        "missing-field",
        ("spec", "backend", "auth"),
        "spec.backend.auth needs 'scheme'",
        "choose one of: bearer, basic, header",
        True,
    )


def test_all_problems_come_at_once() -> None:
    document = example(TICKET)
    document["metadata"]["nme"] = "x"
    document["spec"]["limits"] = {"timeout": "10 seconds", "max_output": "1MiB"}
    document["spec"]["backend"]["auth"]["token"] = "abc"
    document["spec"]["trust"]["reviewed"]["date"] = "soon"
    del document["spec"]["version"]

    _, problems = validate_document(document)

    assert sorted(problem.code for problem in problems) == [
        "bad-date",
        "bad-duration",
        "missing-field",
        "secret-as-text",
        "unknown-field",
        "unknown-field",
    ]


@pytest.mark.parametrize("key", [5, 1.5, None, True, 10**30], ids=repr)
def test_field_name_that_is_no_text_is_reported_at_its_key(key: Any) -> None:
    document = example(TICKET)
    document["spec"]["limits"][key] = "x"

    problem = only(document)

    assert (problem.code, problem.path, problem.at_key) == ("wrong-type", ("spec", "limits", key), True)


def test_key_of_free_values_is_text() -> None:
    document = example(TICKET)
    document["spec"]["meta"] = {404: "x"}

    problem = only(document)

    assert (problem.code, problem.path, problem.at_key) == ("wrong-type", ("spec", "meta", 404), True)


@pytest.mark.parametrize(
    ("path", "value"),
    [("spec.limits", {f"timeout{number}": "1s" for number in range(5000)}), ("spec.trust.flags", ["a b"] * 5000)],
    ids=["fields", "entries"],
)
def test_hundred_problems_are_enough(path: str, value: Any) -> None:
    _, problems = validate_document(changed(TICKET, path, value))

    assert len(problems) == 101
    assert problems[-1].code == "too-many-problems"


def test_long_values_are_cut_in_messages() -> None:
    problem = only(changed(TICKET, "spec.onCollision", "x" * 100_000))

    assert len(problem.message) < 150


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=repr)
def test_ratio_is_a_finite_number(value: float) -> None:
    problem = only(changed("Telemetry-default", "spec.traces.sample.ratio", value))

    assert problem.path == ("spec", "traces", "sample", "ratio")


def test_model_is_frozen() -> None:
    tool, _ = validate_document(example(TICKET))

    with pytest.raises(ValueError, match="frozen"):
        tool.kind = "Tool"  # type: ignore[union-attr]  # the point of this test


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [spot for key, each in inner for spot in ((*path, key), *spots(each, (*path, key)))]


@settings(deadline=None)
@given(data=st.data())
def test_any_junk_anywhere_gives_paths_that_exist(data: st.DataObject) -> None:
    document = deepcopy(data.draw(st.sampled_from(DOCUMENTS)))
    *parents, last = data.draw(st.sampled_from(spots(document)))
    holder: Any = document
    for part in parents:
        holder = holder[part]
    holder[last] = data.draw(JUNK)

    model, problems = validate_document(document)

    assert (model is None) == bool(problems)
    assert {problem.code for problem in problems} <= CODES.keys()
    for problem in problems:
        spot: Any = document
        for part in problem.path:
            spot = spot[part]
