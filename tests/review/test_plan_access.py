"""Who gains and loses which tool: the narrowed comparison against a comparison of all callers and tools."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.model.caller import Principal
from gateway.policy.access import Access
from gateway.policy.access_answer import AccessQuestion
from gateway.review.plan.access_changes import (
    AccessChange,
    AccessSide,
    Level,
    access_changes,
    list_callers,
    pair_callers,
)
from gateway.review.plan.builder import PlanInput
from tests.review.project_edits import NOON, SMALL, assembled, copy_project, edit, edit_project, plan_edit, side_of

ARGUMENTS = {"order": "A1", "amount": 20}
TIERS = ("internal", "partner", "community", "quarantine")
TOOLS = ("order_read", "refund_pay", "mail_send")

ALWAYS = (
    "p, role:clerk, *, tool:*, discover, quarantine, allow",
    "p, role:clerk, *, tool:*, invoke, partner, allow",
    "p, role:agent, *, class:payment, invoke, quarantine, deny",
    "p, role:lead, *, class:order, invoke, quarantine, allow",
)

rows = st.tuples(
    st.sampled_from(["role:clerk", "role:lead", "role:agent", "role:new", "user:ana", "agent:bot"]),
    st.sampled_from(["desk", "side", "*", "d*"]),
    st.sampled_from(["tool:*", "tool:order_*", "tool:refund_pay", "tool:mail_send", "class:order", "class:*"]),
    st.sampled_from(["discover", "invoke", "discover|invoke", "read"]),
    st.sampled_from(TIERS),
    st.sampled_from(["allow", "allow", "allow", "deny"]),
).map(lambda cells: "p, " + ", ".join(cells))
links = st.sets(
    st.sampled_from(
        [
            "g, user:ana, role:clerk",
            "g, user:kim, role:lead",
            "g, agent:bot, role:agent",
            "g, agent:bot, role:clerk",
            "g, role:lead, role:clerk",
            "g, role:new, role:lead",
            "g, user:ana, role:new",
            "g2, tool:refund_pay, class:payment",
            "g2, tool:mail_send, class:payment",
            "g2, class:payment, class:order",
        ]
    )
)
tools = st.fixed_dictionaries(
    {
        "tier": st.sampled_from(["internal", "partner", *TIERS]),
        "lifecycle": st.sampled_from(["active", "active", "active", "draft", "retired"]),
        "artifact": st.sampled_from(["text", "order"]),
        "reviewed": st.sampled_from(["2026-10-01", "2026-10-01", "2024-10-01"]),
    }
)
catalogues = st.fixed_dictionaries(
    {
        "audience": st.sets(st.sampled_from(["role:lead", "user:ana", "role:new"])).map(
            lambda names: {*names, "role:clerk"}
        ),
        "tools": st.sets(st.sampled_from(TOOLS), min_size=2),
        "hidden": st.sets(st.sampled_from(TOOLS), max_size=1),
    }
)
projects = st.fixed_dictionaries(
    {
        "rows": st.lists(rows, max_size=4).map(lambda drawn: [*ALWAYS, *drawn]),
        "links": links,
        "ranks": st.permutations([0, 10, 20, 90]),
        "callable": st.booleans(),
        "given": st.sets(st.sampled_from(["role:clerk", "role:lead", "role:new"]), max_size=2),
        **dict.fromkeys(TOOLS, tools),
        **dict.fromkeys(("desk", "side"), catalogues),
    }
)


@st.composite
def edited_twice(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two projects, of which the second differs in one or two parts: more would hide the effect of each."""
    before, other = draw(projects), draw(projects)
    changed = draw(st.sets(st.sampled_from([*sorted(before), "links", "links"]), min_size=1, max_size=2))
    return before, {part: other[part] if part in changed else before[part] for part in before}


def write(folder: Path, project: Mapping[str, Any]) -> Path:
    copy_project(folder)
    (folder / "policies/policy.csv").write_text("\n".join(dict.fromkeys(project["rows"])), encoding="utf-8")
    (folder / "policies/roles.csv").write_text("\n".join(sorted(project["links"])), encoding="utf-8")
    (folder / "policies/tests/desk.yaml").unlink()
    (folder / "configs/gates.yaml").unlink()
    (folder / "configs/trust.yaml").write_text(_trust(project), encoding="utf-8")
    (folder / "configs/tools.yaml").write_text(_tools(project), encoding="utf-8")
    (folder / "configs/catalogues.yaml").write_text(_catalogues(project), encoding="utf-8")
    roles = ", ".join(sorted(project["given"]))
    edit(folder, "configs/gateway.yaml", "roles: [role:clerk, role:lead]", f"roles: [{roles}]")
    return folder


def _trust(project: Mapping[str, Any]) -> str:
    return "\n---\n".join(
        f"apiVersion: gateway/v1\nkind: TrustTier\nmetadata: {{name: {name}}}\n"
        f"spec: {{rank: {rank}, description: A tier., origin: first-party, requires: {{reviewedWithin: 180d}}, "
        f"callable: {'true' if project['callable'] or name != 'quarantine' else 'false'}}}"
        for name, rank in zip(TIERS, project["ranks"], strict=True)
    )


def _tools(project: Mapping[str, Any]) -> str:
    documents = [
        "apiVersion: gateway/v1\nkind: ArtifactClass\nmetadata: {name: order, owner: team}\n"
        "spec: {description: An order., base: json}"
    ]
    for name in TOOLS:
        tool = project[name]
        documents.append(
            f"apiVersion: gateway/v1\nkind: Tool\nmetadata: {{name: {name}, owner: team}}\n"
            f"spec:\n  version: 1.0.0\n  description: A tool.\n  lifecycle: {tool['lifecycle']}\n"
            f"  trust: {{tier: {tool['tier']}, reviewed: {{date: '{tool['reviewed']}', by: team}}, flags: []}}\n"
            "  input: {schema: {type: object, properties: {order: {type: string}, amount: {type: number}}}}\n"
            f"  output: {{artifact: {tool['artifact']}}}\n"
            "  backend: {type: http, method: GET, url: 'http://127.0.0.1:9000/x'}"
        )
    return "\n---\n".join(documents)


def _catalogues(project: Mapping[str, Any]) -> str:
    return "\n---\n".join(
        f"apiVersion: gateway/v1\nkind: Catalogue\nmetadata: {{name: {name}, owner: team}}\n"
        f"spec:\n  audience: [{', '.join(sorted(project[name]['audience']))}]\n"
        f"  include: [{{tools: [{', '.join(sorted(project[name]['tools']))}]}}]\n"
        f"  hidden: [{', '.join(sorted(project[name]['hidden']))}]\n"
        f"  publish: {{path: /{name}}}"
        for name in ("desk", "side")
    )


def compare_all(before: PlanInput, after: PlanInput) -> list[AccessChange]:
    """Every caller, catalogue and tool, queried as a caller would."""
    found = []
    known = (list_callers(side.snapshot, side.rows) for side in (before, after))
    for name, old, new in pair_callers(*known):
        for catalogue in sorted({*before.snapshot.catalogues, *after.snapshot.catalogues}):
            for tool in sorted({*before.snapshot.tools, *after.snapshot.tools}):
                levels = (
                    query_level(before.access, old, catalogue, tool),
                    query_level(after.access, new, catalogue, tool),
                )
                if levels[0] != levels[1]:
                    found.append(AccessChange(name, catalogue, tool, *levels))
    return found


def query_level(access: Access, caller: Principal, catalogue: str, tool: str) -> Level:
    answer = access.decide_call(AccessQuestion(caller, catalogue, tool, NOON, args=ARGUMENTS))
    if answer.steps[-1].name == "gates":
        return "calls"
    return "sees" if tool in [name for name, _ in access.list_tools(caller, catalogue, at=NOON)] else "none"


def narrowed(before: PlanInput, after: PlanInput) -> Sequence[AccessChange]:
    return access_changes(AccessSide(before.access, before.rows, NOON), AccessSide(after.access, after.rows, NOON))


@settings(max_examples=80)
@given(edited_twice())
def test_narrowed_comparison_equals_asking_about_everything(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        one, other = (write(Path(folder, name), project) for name, project in zip("ab", pair, strict=True))
        before, after = (side_of(each, shown_as=Path()) for each in (one, other))

    assert list(narrowed(before, after)) == compare_all(before, after)


def test_unchanged_project_asks_the_policy_nothing() -> None:
    found = assembled(SMALL)
    assert found.access is not None
    access = found.access
    side = side_of(SMALL, shown_as=Path())
    asked_about: list[object] = []

    class Listening(Access):
        def decide_action(self, principal: Principal, action: str, *about: Any, **named: Any) -> Any:
            asked_about.append((principal, action))
            return super().decide_action(principal, action, *about, **named)

    reach = AccessSide(Listening(access.snapshot, access.authoriser), side.rows, NOON)

    assert access_changes(reach, reach) == ()
    assert asked_about == []


def test_callers_who_hold_the_same_are_asked_about_once(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    many = "".join(f"g, user:u{number}, role:clerk\n" for number in range(300))
    for folder in (before, after):
        path = folder / "policies/roles.csv"
        path.write_text(path.read_text(encoding="utf-8") + many, encoding="utf-8")
    edit(after, "policies/policy.csv", "discover|invoke, partner,    allow", "discover,        partner,    allow")
    parts: list[tuple[int, int]] = []

    sides = (side_of(folder, shown_as=Path()) for folder in (before, after))
    reaches = (AccessSide(each.access, each.rows, NOON) for each in sides)
    changes = access_changes(*reaches, progress=lambda done, total: parts.append((done, total)))

    losing = {each.caller for each in changes}
    assert len(losing) > 300
    assert parts[-1][1] < 10


def test_subject_that_a_provider_gives_a_role_gains_its_tools(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    edit(before, "configs/gateway.yaml", "roles: [role:clerk, role:lead]", "roles: [role:lead]")

    changes = [each for each in plan_edit(before, after).access if each.caller == "user:you"]

    assert changes == [
        AccessChange("user:you", "desk", "order_read", "sees", "calls"),
        AccessChange("user:you", "desk", "refund_pay", "sees", "calls"),
    ]


def test_tool_that_leaves_a_denied_group_is_gained(tmp_path: Path) -> None:
    plan = edit_project(tmp_path, {"policies/roles.csv": ("g2, tool:refund_pay, class:payment", "")})

    assert plan.access == (AccessChange("agent:bot", "desk", "refund_pay", "sees", "calls"),)


def test_tool_that_yields_another_class_is_under_its_rows(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder in (before, after):
        edit(folder, "policies/policy.csv", "class:payment, invoke", "class:order, invoke")
    edit(after, "configs/tools.yaml", "output: {artifact: order, inline: true}", "output: {artifact: json}")

    assert plan_edit(before, after).access == (AccessChange("agent:bot", "desk", "order_read", "sees", "calls"),)
