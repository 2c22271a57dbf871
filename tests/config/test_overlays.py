"""Overlays: merged values, replaced values, refusals, and the position that a value gets."""

from typing import Any

import pytest

from gateway.config.environment_variables import substitute_environment
from gateway.config.overlays import apply_overlays, is_overlay
from gateway.config.yaml.document import YamlDocument
from gateway.config.yaml.parser import parse_text
from gateway.registries.diagnostics import Diagnostic, Position

BASE = """\
kind: Telemetry
metadata: {name: default}
spec:
  service: gateway
  traces:
    sample: {ratio: 0.2, always: [error, denied]}
  capture: {results: none}
---
kind: Tool
metadata: {name: lookup}
spec: {meta: {a: 1}}
"""


def read(text: str, file: str = "base.yaml") -> list[YamlDocument]:
    documents, problems = parse_text(text, file)
    assert problems == []
    return documents


def overlay(*patches: str, environment: str = "prod", file: str = "prod.yaml") -> YamlDocument:
    listed = "".join(f"    - {patch}\n" for patch in patches)
    text = (
        f"kind: Overlay\nmetadata: {{name: {environment}}}\nspec:\n  environment: {environment}\n  patches:\n{listed}"
    )
    return read(text, file)[0]


def merged(spec: str, patch: str) -> Any:
    base = read(f"kind: Tool\nmetadata: {{name: t}}\nspec: {spec}\n")
    change = overlay(f"{{target: {{kind: Tool, name: t}}, merge: {patch}}}")
    (after,), problems = apply_overlays(base, [change], environment="prod")
    assert [each for each in problems if each.is_error] == []
    return after.data["spec"]


@pytest.mark.parametrize(
    ("spec", "patch", "result"),
    [
        ("{a: 1}", "{b: 2}", {"a": 1, "b": 2}),
        ("{a: 1}", "{a: 2}", {"a": 2}),
        ("{a: {b: 1, c: {d: 2}}}", "{a: {c: {d: 3}}}", {"a": {"b": 1, "c": {"d": 3}}}),
        ("{a: [1, 2, 3]}", "{a: [4]}", {"a": [4]}),
        ("{a: [1]}", "{a: []}", {"a": []}),
        ("{a: 1, b: 2}", "{a: null}", {"b": 2}),
        ("{a: {b: 1, c: 2}}", "{a: {b: null}}", {"a": {"c": 2}}),
        ("{a: {b: 1}}", "{a: null}", {}),
        ("{a: {b: 1}}", "{a: 5}", {"a": 5}),
        ("{a: 5}", "{a: {b: 1, c: null}}", {"a": {"b": 1}}),
        ("{a: 5}", "{a: [null, {b: null}]}", {"a": [None, {"b": None}]}),
        ("{a: {b: 1}}", "{a: {}}", {"a": {"b": 1}}),
        ("{a: null}", "{a: {b: 1}}", {"a": {"b": 1}}),
        ("{a: 1}", "{}", {"a": 1}),
        ("", "{a: 1}", {"a": 1}),
        ("{a: 1}", "{missing: null}", {"a": 1}),
        ("[not, a, mapping]", "{a: 1}", ["not", "a", "mapping"]),
        ("{a: 1}", "not a mapping", {"a": 1}),
    ],
)
def test_patch_merges_into_spec(spec: str, patch: str, result: object) -> None:
    assert merged(spec, patch) == result


def test_every_value_keeps_where_it_came_from() -> None:
    merge = "{traces: {sample: {ratio: 0.05, always: [x]}}, capture: null}"
    patch = f"{{target: {{kind: Telemetry, name: default}}, merge: {merge}}}"

    (after, untouched), problems = apply_overlays(read(BASE), [overlay(patch)], environment="prod")

    assert problems == []
    assert after.data["spec"] == {"service": "gateway", "traces": {"sample": {"ratio": 0.05, "always": ["x"]}}}
    assert after.file == "base.yaml"
    assert after.position(("spec", "service")) == Position("base.yaml", 4, 12, 7)
    assert after.position(("spec", "traces", "sample")) == Position("base.yaml", 6, 13)
    assert after.position(("spec", "traces", "sample", "ratio")) == Position("prod.yaml", 6, 83, 4)
    assert after.key_position(("spec", "traces", "sample", "ratio")) == Position("prod.yaml", 6, 76, 5)
    assert after.position(("spec", "traces", "sample", "always", 0)) == Position("prod.yaml", 6, 98, 1)
    assert ("spec", "traces", "sample", "always", 1) not in after.positions
    assert ("spec", "capture", "results") not in after.positions
    assert ("spec", "capture") not in after.key_positions
    assert untouched.data["spec"] == {"meta": {"a": 1}}


def test_originals_stay_as_they_were() -> None:
    before, expected = read(BASE), read(BASE)

    apply_overlays(before, [overlay("{target: {kind: Tool, name: lookup}, merge: {meta: {a: 2}}}")], environment="prod")

    assert before == expected


def test_later_patch_of_a_document_sees_the_earlier() -> None:
    first = "{target: {kind: Tool, name: lookup}, merge: {meta: {b: {c: 1}}}}"
    second = "{target: {kind: Tool, name: lookup}, merge: {meta: {a: null, b: {d: 2}}}}"
    change = overlay(first, second)

    (_, tool), problems = apply_overlays(read(BASE), [change], environment="prod")

    assert problems == []
    assert tool.data["spec"] == {"meta": {"b": {"c": 1, "d": 2}}}
    assert change.data["spec"]["patches"][0]["merge"] == {"meta": {"b": {"c": 1}}}


def test_missing_spec_is_made_by_the_patch() -> None:
    base = read("kind: Tool\nmetadata: {name: t}\n")

    (after,), _ = apply_overlays(base, [overlay("{target: {kind: Tool, name: t}, merge: {a: 1}}")], environment="prod")

    assert after.data["spec"] == {"a": 1}
    assert after.position(("spec",)) == Position("prod.yaml", 6, 46)


def test_values_from_the_environment_stay_marked() -> None:
    base, _, _ = substitute_environment(
        read("kind: Tool\nmetadata: {name: t}\nspec: {a: $A, b: '${A}', c: ['${A}']}\n")[0], {"A": "s"}
    )
    change = overlay("{target: {kind: Tool, name: t}, merge: {a: '${A:-x}', c: null, d: {e: '${A}'}}}")
    filled, _, _ = substitute_environment(change, {"A": "s"})

    (after,), _ = apply_overlays([base], [filled], environment="prod")

    assert after.data["spec"] == {"a": "s", "b": "s", "d": {"e": "s"}}
    assert after.substituted == {("spec", "a"), ("spec", "b"), ("spec", "d", "e")}
    assert after.written == {("spec", "a"): "${A:-x}", ("spec", "b"): "${A}", ("spec", "d", "e"): "${A}"}


def test_aliased_patch_has_the_position_of_the_alias() -> None:
    text = "kind: Overlay\nspec:\n  environment: prod\n  patches:\n    - target: {kind: Tool, name: lookup}\n"
    text += "      merge: {x: &x {y: [1]}, meta: *x}\n"

    (_, tool), _ = apply_overlays(read(BASE), read(text, "prod.yaml"), environment="prod")

    assert tool.data["spec"] == {"meta": {"a": 1, "y": [1]}, "x": {"y": [1]}}
    assert tool.position(("spec", "meta", "y", 0)) == Position("prod.yaml", 6, 37, 2)
    assert tool.data["spec"]["meta"]["y"] is not tool.data["spec"]["x"]["y"]


def test_without_an_environment_nothing_is_applied() -> None:
    base = read(BASE)
    change = overlay("{target: {kind: Tool, name: lookup}, merge: {meta: null}}")

    assert apply_overlays(base, [change], environment=None) == (base, [])
    assert apply_overlays(base, [], environment="dev") == (base, [])


@pytest.mark.parametrize(
    ("environment", "help", "file"),
    [
        ("prd", "did you mean 'prod'?", "prod.yaml"),
        ("elsewhere", "overlays exist for 'dev', 'prod'", "dev.yaml"),
    ],
)
def test_environment_without_overlay_is_reported_if_others_have_one(environment: str, help: str, file: str) -> None:
    base = read(BASE)
    patch = "{target: {kind: Tool, name: lookup}, merge: {meta: null}}"
    others = [overlay(patch, environment="dev", file="dev.yaml"), overlay(patch)]

    after, (problem,) = apply_overlays(base, others, environment=environment)

    assert after == base
    assert (problem.code, problem.severity, problem.help) == ("overlay-missing", "warning", help)
    assert problem.position.file == file


@pytest.mark.parametrize(
    ("target", "message", "help", "column", "width"),
    [
        ("{kind: Tool, name: lokup}", "there is no Tool 'lokup' to patch", "did you mean 'lookup'?", 35, 5),
        (
            "{kind: Tool, name: default}",
            "there is no Tool 'default' to patch",
            "'default' has the kind Telemetry",
            23,
            4,
        ),
        (
            "{kind: Tool, name: zebra}",
            "there is no Tool 'zebra' to patch",
            "an overlay can only change documents that exist",
            35,
            5,
        ),
        (
            "{kind: Overlay, name: prod}",
            "an overlay cannot change a document of kind Overlay",
            "overlays cannot change overlays, policy tests or attestations",
            23,
            7,
        ),
        (
            "{kind: PolicyTest, name: x}",
            "an overlay cannot change a document of kind PolicyTest",
            "overlays cannot change overlays, policy tests or attestations",
            23,
            10,
        ),
    ],
)
@pytest.mark.parametrize("environment", ["prod", None])
def test_target_that_matches_nothing_is_an_error(
    target: str, message: str, help: str, column: int, width: int, environment: str | None
) -> None:
    base = [*read(BASE), *read("kind: PolicyTest\nmetadata: {name: x}\n")]

    after, problems = apply_overlays(base, [overlay(f"{{target: {target}, merge: {{a: 1}}}}")], environment=environment)

    assert after == base
    assert problems == [Diagnostic("overlay-target", message, Position("prod.yaml", 6, column, width), help=help)]


def test_environment_has_one_overlay() -> None:
    one = overlay("{target: {kind: Tool, name: lookup}, merge: {meta: {a: 2}}}")
    two = overlay("{target: {kind: Tool, name: lookup}, merge: {meta: {a: 3}}}", file="other.yaml")

    after, (problem,) = apply_overlays(read(BASE), [one, two], environment="prod")

    assert after[1].data["spec"] == {"meta": {"a": 2}}
    assert problem.code == "overlay-duplicate"
    assert problem.position == Position("other.yaml", 4, 16, 4)
    assert problem.related == (("the first is here", Position("prod.yaml", 4, 16, 4)),)


def test_removal_of_nothing_is_a_warning() -> None:
    change = overlay("{target: {kind: Tool, name: lookup}, merge: {metta: null}}")

    _, (problem,) = apply_overlays(read(BASE), [change], environment="prod")

    assert (problem.code, problem.severity, problem.message) == (
        "overlay-remove",
        "warning",
        "there is no 'metta' to remove",
    )
    assert problem.position == Position("prod.yaml", 6, 52, 5)


@pytest.mark.parametrize(
    "text",
    [
        "kind: Overlay\n",
        "kind: Overlay\nspec: 5\n",
        "kind: Overlay\nspec: {environment: [prod]}\n",
        "kind: Overlay\nspec: {environment: prod, patches: 5}\n",
        "kind: Overlay\nspec: {environment: prod, patches: [5, {}, {target: 5}, {target: {kind: 5, name: x}}]}\n",
        "kind: Overlay\nspec: {environment: prod, patches: [{target: {kind: Tool, name: lookup}}]}\n",
    ],
)
def test_wrong_shape_changes_nothing(text: str) -> None:
    base = [*read(BASE), *read("kind: [x]\nmetadata: 7\n"), *read("kind: Tool\nmetadata: {name: 7}\n")]

    after, problems = apply_overlays(base, read(text), environment="prod")

    assert [each.data for each in after] == [each.data for each in base]
    assert problems == []


def test_documents_of_the_same_name_are_all_patched() -> None:
    change = overlay("{target: {kind: Tool, name: lookup}, merge: {meta: 1}}")

    after, _ = apply_overlays([*read(BASE), *read(BASE)], [change], environment="prod")

    assert [each.data["spec"] for each in after if each.data["kind"] == "Tool"] == [{"meta": 1}] * 2


def test_overlays_are_distinguished_from_other_documents() -> None:
    assert [is_overlay(each) for each in [*read(BASE), overlay("{}")]] == [False, False, True]
