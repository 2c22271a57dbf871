"""References between documents: every name must exist, and every wrong one is reported at its position."""

import pytest

from gateway.config.document_checks import ANY_ITEM, REFERENCES, check_references, document_identity
from gateway.config.field_introspection import list_fields
from gateway.config.kinds.pipelines import STAGE_OPTIONS
from gateway.config.kinds.validation import KINDS
from gateway.config.yaml.parser import parse_text
from gateway.registries.diagnostics import Position

GATEWAY = """\
kind: Gateway
metadata: {name: acme}
spec:
  defaults: {pipeline: standard, collisionPolicy: careful, tier: internal}
  identity: [corp]
  storage: main
---
kind: Pipeline
metadata: {name: standard}
---
kind: CollisionPolicy
metadata: {name: careful}
---
kind: TrustTier
metadata: {name: internal}
---
kind: IdentityProvider
metadata: {name: corp}
---
kind: Storage
metadata: {name: main}
---
kind: TrustFlag
metadata: {name: egress}
"""


def check(text: str) -> list[tuple[str, str, str, str | None]]:
    documents, problems = parse_text(f"{GATEWAY}---\n{text}", "a.yaml")
    assert problems == []
    return [(found.code, str(found.position), found.message, found.help) for found in check_references(documents)]


def line_of(text: str) -> int:
    return GATEWAY.count("\n") + 1 + text.count("\n")


def test_complete_folder_has_no_problem() -> None:
    tool = "kind: Tool\nmetadata: {name: t}\nspec: {trust: {tier: internal, flags: [egress]}, output: {artifact: json}}"

    assert check(tool) == []


@pytest.mark.parametrize(
    ("text", "column", "message", "help"),
    [
        (
            "kind: Tool\nmetadata: {name: t}\nspec: {trust: {tier: internl}}",
            22,
            "there is no TrustTier 'internl'",
            "did you mean 'internal'?",
        ),
        (
            "kind: Tool\nmetadata: {name: t}\nspec: {trust: {flags: [egress, money]}}",
            32,
            "there is no TrustFlag 'money'",
            "declared: egress",
        ),
        (
            "kind: Tool\nmetadata: {name: t}\nspec: {backend: {upstream: github}}",
            28,
            "there is no Upstream 'github'",
            "no Upstream is declared",
        ),
        (
            "kind: Tool\nmetadata: {name: t}\nspec: {output: {artifact: jsn}}",
            27,
            "there is no ArtifactClass 'jsn'",
            "did you mean 'json'?",
        ),
        (
            "kind: Catalogue\nmetadata: {name: c}\nspec: {forbidTogether: [[egress, pii]]}",
            34,
            "there is no TrustFlag 'pii'",
            "declared: egress",
        ),
        (
            "kind: Catalogue\nmetadata: {name: c}\nspec: {include: [{tools: [a]}, {maxTier: public}]}",
            42,
            "there is no TrustTier 'public'",
            "declared: internal",
        ),
        (
            "kind: GateRule\nmetadata: {name: g}\nspec: {match: {upstreams: ['git*', gitlab]}}",
            36,
            "there is no Upstream 'gitlab'",
            "no Upstream is declared",
        ),
    ],
)
def test_name_that_leads_nowhere_is_pointed_at(text: str, column: int, message: str, help: str) -> None:
    assert check(text) == [("unknown-reference", f"a.yaml:{line_of(text) + 1}:{column}", message, help)]


@pytest.mark.parametrize(
    "spec", ["7", "[a]", "{trust: internal}", "{trust: {flags: egress, tier: 7}}", "{trust: {flags: [{a: b}]}}"]
)
def test_wrong_shape_is_left_to_another_check(spec: str) -> None:
    assert check(f"kind: Tool\nmetadata: {{name: t}}\nspec: {spec}") == []


def test_two_documents_of_one_kind_and_name_are_refused() -> None:
    tools = "kind: Tool\nmetadata: {name: t}\n---\nkind: Tool\nmetadata:\n  name: t"
    text = f"{tools}\n---\nkind: GateRule\nmetadata: {{name: t}}\n---\nkind: Tool"
    documents, _ = parse_text(f"{GATEWAY}---\n{text}", "a.yaml")

    [found] = check_references(documents)

    first = Position("a.yaml", line_of("") + 2, 18, 1)
    assert (found.code, found.message, found.related) == (
        "duplicate-name",
        "two documents are named Tool 't' (E_TOOL_ALREADY_REGISTERED)",
        [("the first one", first)],
    )
    assert found.position == Position("a.yaml", line_of("") + 6, 9, 1)


def test_there_is_exactly_one_gateway() -> None:
    second = "kind: Gateway\nmetadata: {name: other}\nspec: {storage: main}"
    documents, _ = parse_text("kind: Tool\nmetadata: {name: t}", "a.yaml")

    assert [code for code, *_ in check(second)] == ["second-gateway"]
    assert [found.code for found in check_references(documents)] == ["no-gateway"]
    assert check_references([]) == []


@pytest.mark.parametrize("text", ["kind: 7", "a: b", "kind: Tool\nmetadata: x", "kind: Tool\nmetadata: {name: 7}"])
def test_document_without_kind_or_name_has_no_identity(text: str) -> None:
    [document], _ = parse_text(text, "a.yaml")

    assert document_identity(document) is None


def test_many_names_are_not_all_listed() -> None:
    tiers = "\n---\n".join(f"kind: TrustTier\nmetadata: {{name: tier-number-{n}}}" for n in range(9))
    tool = "kind: Tool\nmetadata: {name: t}\nspec: {trust: {tier: zzz}}"

    [(_, _, _, help)] = check(f"{tiers}\n---\n{tool}")

    assert help is not None
    assert help.endswith(", tier-number-6, …")


def test_every_reference_is_a_field_of_its_kind() -> None:
    """A renamed field must not silently leave its reference unchecked."""
    from gateway.config.field_docs import explain_schema_field

    for kind, references in REFERENCES.items():
        assert kind in KINDS
        for reference in references:
            assert reference.target in KINDS
            fields = [step for step in reference.path if step != ANY_ITEM]
            if "with" in fields:
                *fields, option = fields
                assert any(option in list_fields(model) for model in STAGE_OPTIONS.values())
            assert explain_schema_field(f"{kind}.spec.{'.'.join(fields)}")
