"""Which edits of documents are changes, and how values are shown."""

from pathlib import Path

import pytest

from gateway.review.plan.builder import Plan
from gateway.review.plan.document_changes import MISSING, FieldChange
from gateway.review.plan.renderer import plan_data, plan_text
from tests.review.project_edits import copy_project, edit, edit_project, plan_edit

SECRET = "hunter2-from-the-environment"


def fields(plan: Plan, name: str) -> list[FieldChange]:
    [change] = [each for each in plan.documents if each.name == name]
    return list(change.fields)


def test_equal_durations_are_no_change(tmp_path: Path) -> None:
    plan = edit_project(tmp_path, {"configs/gates.yaml": ("timeout: 30m", "timeout: 1800s")})

    assert plan.is_empty
    assert plan.before == plan.after


def test_default_that_is_written_out_is_no_change(tmp_path: Path) -> None:
    plan = edit_project(tmp_path, {"configs/gates.yaml": ("  when:", "  mode: enforce\n  when:")})

    assert plan.is_empty


def test_values_are_shown_as_they_were_written(tmp_path: Path) -> None:
    plan = edit_project(tmp_path, {"configs/gates.yaml": ("timeout: 30m", "timeout: 90m")})

    assert fields(plan, "large-refunds") == [FieldChange("check.timeout", "30m", "90m")]


def test_default_is_shown_where_nothing_was_written(tmp_path: Path) -> None:
    plan = edit_project(tmp_path, {"configs/gates.yaml": ("  when:", "  mode: observe\n  holdFor: 1m\n  when:")})

    assert fields(plan, "large-refunds") == [
        FieldChange("mode", "enforce", "observe"),
        FieldChange("holdFor", "45s", "1m"),
    ]


def test_mapping_that_comes_is_shown_by_its_leaves(tmp_path: Path) -> None:
    plan = edit_project(tmp_path, {"configs/tools.yaml": ("  output: {", "  limits: {timeout: 5s}\n  output: {")})

    assert fields(plan, "order_read") == [FieldChange("limits.timeout", MISSING, "5s")]


def test_entries_of_a_list_come_and_go(tmp_path: Path) -> None:
    plan = edit_project(tmp_path, {"configs/tools.yaml": ("flags: [writes]", "flags: [destructive]")})

    assert fields(plan, "refund_pay") == [
        FieldChange("trust.flags", ["writes"], ["destructive"], ("destructive",), ("writes",))
    ]


def test_long_lists_are_shown_by_what_came_and_went(tmp_path: Path) -> None:
    names = ", ".join(f"user:person-{number}" for number in range(12))
    plan = edit_project(tmp_path, {"configs/catalogues.yaml": ("[role:clerk, role:lead]", f"[role:clerk, {names}]")})

    assert "audience  - role:lead  + user:person-0  + user:person-1  + " in plan_text(plan)
    assert "  + 8 more\n" in plan_text(plan)


def test_values_of_the_environment_are_never_shown(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    edit(after, "configs/gateway.yaml", "path: data/gateway.db", "path: '${DATA}/gateway.db'")

    plan = plan_edit(before, after, environ={"DATA": SECRET})

    assert fields(plan, "main") == [FieldChange("path", "data/gateway.db", "${DATA}/gateway.db")]
    assert SECRET not in plan_text(plan) + str(plan_data(plan))


def test_entries_of_lists_from_the_environment_are_never_shown(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    edit(after, "configs/catalogues.yaml", "[role:clerk, role:lead]", '[role:clerk, "user:${WHO}"]')

    plan = plan_edit(before, after, environ={"WHO": SECRET})

    [found] = fields(plan, "desk")
    assert found.after == ["role:clerk", "user:${WHO}"]
    assert "audience-widened" in {each.code for each in plan.findings}
    assert SECRET not in plan_text(plan) + str(plan_data(plan))


def test_new_document_shows_nothing_of_the_environment(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    text = (after / "configs/catalogues.yaml").read_text(encoding="utf-8")
    another = text.replace("name: desk", "name: hall").replace("/desk", "/hall").replace("role:lead", '"user:${WHO}"')
    (after / "configs/hall.yaml").write_text(another, encoding="utf-8")

    plan = plan_edit(before, after, environ={"WHO": SECRET})

    assert [each.about for each in plan.documents] == ["Catalogue hall"]
    assert SECRET not in plan_text(plan) + str(plan_data(plan))


def test_another_variable_is_a_change_though_both_are_the_same_here(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    edit(before, "configs/gateway.yaml", "path: data/gateway.db", "path: '${ONE:-data}/gateway.db'")
    edit(after, "configs/gateway.yaml", "path: data/gateway.db", "path: '${OTHER:-data}/gateway.db'")

    plan = plan_edit(before, after)

    assert fields(plan, "main") == [FieldChange("path", "${ONE:-data}/gateway.db", "${OTHER:-data}/gateway.db")]


def test_secrets_are_shown_as_references(tmp_path: Path) -> None:
    plan = edit_project(
        tmp_path,
        {"configs/tools.yaml": ("body: {from", "auth: {scheme: bearer, token: {fromEnv: PAY_TOKEN}}, body: {from")},
    )

    shown = {found.path: found.after for found in fields(plan, "refund_pay")}
    assert shown == {"backend.auth.scheme": "bearer", "backend.auth.token.fromEnv": "PAY_TOKEN"}


def test_text_cannot_command_a_terminal(tmp_path: Path) -> None:
    plan = edit_project(
        tmp_path, {"configs/tools.yaml": ("description: Pays money back.", 'description: "a\\u001b[2Jb\\nc"')}
    )

    assert "\x1b" not in plan_text(plan)
    assert "\\u001b[2Jb\\nc" in plan_text(plan)


OVERLAY = """
apiVersion: gateway/v1
kind: Overlay
metadata: {name: prod, owner: team-platform}
spec:
  environment: prod
  patches:
    - {target: {kind: GateRule, name: large-refunds}, merge: {mode: MODE}}
"""


@pytest.fixture
def with_overlay(tmp_path: Path) -> tuple[Path, Path]:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder, mode in ((before, "enforce"), (after, "disabled")):
        (folder / "configs/prod.yaml").write_text(OVERLAY.replace("MODE", mode), encoding="utf-8")
    return before, after


def test_overlay_is_shown_by_what_it_does_in_its_environment(with_overlay: tuple[Path, Path]) -> None:
    plan = plan_edit(*with_overlay, environment="prod")

    assert [(each.kind, each.fields) for each in plan.documents] == [
        ("GateRule", (FieldChange("mode", "enforce", "disabled"),))
    ]
    assert "gate-not-enforced" in {found.code for found in plan.findings}


def test_overlay_of_another_environment_is_not_passed_over(with_overlay: tuple[Path, Path]) -> None:
    plan = plan_edit(*with_overlay)

    assert [(each.kind, each.name) for each in plan.documents] == [("Overlay", "prod")]
    assert "other-environment" in {found.code for found in plan.findings}
