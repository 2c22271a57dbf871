"""Every kind of relaxation is found at its position, and its opposite is not mistaken for one."""

from pathlib import Path

import pytest

from gateway.review.plan.builder import Plan
from gateway.review.plan.risk import RISKS
from tests.review.project_edits import copy_project, edit, edit_project, plan_edit
from tests.support.paths import ROOT

ALWAYS_THERE = {"changed", "access-gained", "access-seen", "access-lost"}
GATE = ("configs/gates.yaml", "GateRule large-refunds")
CHECK = "check: {type: approval, from: [role:lead], timeout: 30m, reason: A large refund, show: [order, amount]}"
WINDOW = (
    "check: {type: window, timezone: Europe/Berlin, "
    'open: [{days: [mon], from: "08:00", to: "18:00"}], closed: ["2026-12-24"]}'
)
RATE = "check: {type: rate, limit: 10, per: 1m}"
CONFIRM = "check: {type: confirmation, reason: A large refund, show: [order, amount]}"
QUOTA = "check: {type: quota, limit: 100, per: 1d}"
ARGUMENTS = 'check: {type: arguments, require: "args.amount < 100", message: too much}'
JWT = (
    "spec: {type: jwt, issuer: https://login.example.com, audience: [gateway], algorithms: [RS256], "
    "keys: {fromFile: keys.json}, roles: {claim: groups, map: {desk: role:clerk}}}"
)
TOKEN = (
    "spec: {type: token, tokens: [{subject: agent:ci, roles: [role:clerk], sha256: {fromEnv: CI_SHA256}, "
    'expires: "2027-03-31"}]}'
)
NONE = "spec: {type: none, subject: user:you, roles: [role:clerk, role:lead]}"
UPSTREAM = """
---
apiVersion: gateway/v1
kind: Upstream
metadata: {name: wiki, owner: team-docs}
spec:
  transport: {type: streamable-http, url: "https://wiki.example.com/mcp"}
  import: {include: [page_read], exclude: [page_drop], trust: {tier: community, flags: [egress]}}
"""
UNDECLARED = UPSTREAM.replace(", flags: [egress]", "")
BY_PATTERN = UPSTREAM.replace("exclude:", 'tools: {"page_*": {flags: [egress, writes]}}, exclude:')
TELEMETRY = """
---
apiVersion: gateway/v1
kind: Telemetry
metadata: {name: default, owner: team-sre}
spec:
  traces: {exporter: {type: console}}
  capture: {arguments: keys}
"""
STORAGE = "spec: {type: sqlite, path: data/gateway.db}"


def codes(plan: Plan) -> set[tuple[str, str]]:
    return {(found.about, found.code) for found in plan.findings if found.code not in ALWAYS_THERE}


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        pytest.param("gates.yaml", "when:", "mode: observe\n  when:", "gate-not-enforced", id="observe"),
        pytest.param("gates.yaml", "when:", "mode: disabled\n  when:", "gate-not-enforced", id="disabled"),
        pytest.param("gates.yaml", "> 500", "> 5000", "gate-condition", id="condition"),
        pytest.param(
            "gates.yaml", "from: [role:lead]", "from: [role:lead, role:clerk]", "approvers-widened", id="from"
        ),
        pytest.param("gates.yaml", "show: [order, amount]", "show: [order]", "approval-blind", id="show"),
        pytest.param("gates.yaml", "timeout: 30m", "timeout: 30m, reuse: {for: 1h}", "approval-reuse", id="reuse"),
        pytest.param("gates.yaml", CHECK, RATE, "gate-check", id="other-check"),
        pytest.param("gates.yaml", CHECK, CONFIRM, "gate-check", id="confirmation"),
        pytest.param("trust.yaml", "rank: 90", "rank: 30", "tier-rank-lowered", id="rank"),
        pytest.param("trust.yaml", ", callable: false", "", "tier-callable", id="callable"),
        pytest.param("trust.yaml", "180d", "365d", "tier-review-relaxed", id="review"),
        pytest.param("trust.yaml", "  requires: {reviewedWithin: 180d}\n", "", "tier-review-relaxed", id="no-review"),
        pytest.param("trust.yaml", "  forbids: {backends: [command]}\n", "", "tier-forbids-less", id="forbids"),
        pytest.param("trust.yaml", ", implies: [writes]", "", "flag-implies-less", id="implies"),
        pytest.param(
            "tools.yaml", "flags: [writes]", "flags: [writes, destructive]", "flag-destructive", id="destructive"
        ),
        pytest.param("tools.yaml", "tier: partner", "tier: internal", "tool-more-trusted", id="tier"),
        pytest.param("tools.yaml", "tier: internal,", "tier: internal, trusted: true,", "result-trusted", id="trusted"),
        pytest.param("tools.yaml", "/refunds", "/payments", "tool-backend", id="backend"),
        pytest.param(
            "tools.yaml", "method: POST,", "method: POST, networks: [10.0.0.0/8],", "network-widened", id="network"
        ),
        pytest.param("tools.yaml", ", minimum: 0", "", "tool-input", id="input"),
        pytest.param("tools.yaml", ', redact: ["$.email"]', "", "redact-removed", id="redact"),
        pytest.param("tools.yaml", "artifact: order,", "artifact: json,", "result-reclassified", id="class"),
        pytest.param("tools.yaml", ", queries: [json_get, json_keys]", "", "queries-widened", id="queries"),
        pytest.param(
            "catalogues.yaml",
            "  forbidTogether:\n    - [private-data, egress]\n",
            "",
            "combination-allowed",
            id="combination",
        ),
        pytest.param(
            "catalogues.yaml", "{path: /desk}", "{path: /desk, render: plain}", "envelope-dropped", id="plain"
        ),
        pytest.param("catalogues.yaml", "role:lead]", "role:lead, user:eve]", "audience-widened", id="audience"),
        pytest.param(
            "gateway.yaml", "    - {use: timeout, with: {after: 30s}}\n", "", "pipeline-without-timeout", id="timeout"
        ),
        pytest.param("gateway.yaml", "after: 30s", "after: 3h", "pipeline-options", id="options"),
        pytest.param("gateway.yaml", "sameOrHigherTrust", "always", "honour-tool-widened", id="honour"),
        pytest.param(
            "gateway.yaml", "onCollision: throw", "onCollision: replace", "collisions-relaxed", id="collision"
        ),
        pytest.param("gateway.yaml", "tier: quarantine", "tier: internal", "default-tier", id="default-tier"),
        pytest.param("gateway.yaml", NONE, JWT, "identity-changed", id="provider"),
        pytest.param("gateway.yaml", "data/gateway.db", "data/other.db", "storage-changed", id="storage"),
    ],
)
def test_relaxation_is_named(tmp_path: Path, file: str, old: str, new: str, expected: str) -> None:
    plan = edit_project(tmp_path, {f"configs/{file}": (old, new)})

    assert expected in {code for _, code in codes(plan)}


def test_tier_that_no_longer_forbids_confirmations_is_named(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    edit(before, "configs/trust.yaml", "backends: [command]", "backends: [command], confirmation: true")

    assert ("TrustTier partner", "tier-forbids-less") in codes(plan_edit(before, after))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("gates.yaml", "  when: args.amount > 500\n", "", id="gate-about-more-calls"),
        pytest.param("gates.yaml", "timeout: 30m", "timeout: 10m", id="shorter-wait"),
        pytest.param("gates.yaml", "from: [role:lead]", "from: [role:lead], count: 2", id="more-approvals"),
        pytest.param("trust.yaml", "180d", "90d", id="stricter-review"),
        pytest.param("trust.yaml", "backends: [command]", "backends: [command, python]", id="forbids-more"),
        pytest.param("tools.yaml", '["$.email"]', '["$.email", "$.phone"]', id="masks-more"),
        pytest.param("catalogues.yaml", "[role:clerk, role:lead]", "[role:clerk]", id="smaller-audience"),
        pytest.param("gateway.yaml", "sameOrHigherTrust", "never", id="honours-less"),
    ],
)
def test_tightening_is_no_risk(tmp_path: Path, file: str, old: str, new: str) -> None:
    plan = edit_project(tmp_path, {f"configs/{file}": (old, new)})

    assert codes(plan) == set()
    assert plan.risk == "low"


@pytest.mark.parametrize(
    ("base", "old", "new", "expected"),
    [
        pytest.param(WINDOW, "[mon]", "[mon, sun]", "window-widened", id="day"),
        pytest.param(WINDOW, 'to: "18:00"', 'to: "24:00"', "window-widened", id="hour"),
        pytest.param(WINDOW, ', closed: ["2026-12-24"]', "", "window-widened", id="closed"),
        pytest.param(WINDOW, "Europe/Berlin", "Asia/Tokyo", "window-widened", id="zone"),
        pytest.param(WINDOW, "closed:", "outside: hold, closed:", "refusal-softened", id="outside"),
        pytest.param(WINDOW, 'to: "18:00"', 'to: "17:00"', None, id="shorter"),
        pytest.param(RATE, "limit: 10", "limit: 20", "limit-raised", id="rate"),
        pytest.param(RATE, "per: 1m", "per: 30s", "limit-raised", id="shorter-time"),
        pytest.param(RATE, "per: 1m", "per: 60s", None, id="same-time"),
        pytest.param(RATE, "per: 1m", "per: 1m, burst: 50", "limit-raised", id="burst"),
        pytest.param(RATE, "per: 1m", "per: 1m, by: [subject, tool]", "limit-raised", id="counted-apart"),
        pytest.param(RATE, "limit: 10, per: 1m", "limit: 600, per: 1h", "limit-raised", id="same-pace-more-at-once"),
        pytest.param(RATE, "limit: 10, per: 1m", "limit: 600, per: 1h, burst: 10", None, id="same-pace-and-burst"),
        pytest.param(QUOTA, "limit: 100, per: 1d", "limit: 3000, per: 30d", "limit-raised", id="same-pace-quota"),
        pytest.param(QUOTA, "limit: 100", "limit: 1000", "limit-raised", id="quota"),
        pytest.param(CONFIRM, "[order, amount]", "[order]", "approval-blind", id="confirmed-blind"),
        pytest.param(CONFIRM, "A large refund", "A refund", None, id="confirmed-otherwise"),
        pytest.param(
            CONFIRM.replace(", show: [order, amount]", ""),
            "refund}",
            "refund, show: [order]}",
            "approval-blind",
            id="hides",
        ),
        pytest.param(QUOTA, "per: 1d", "per: 1d, onExhausted: hold", "refusal-softened", id="exhausted"),
        pytest.param(QUOTA, "limit: 100", "limit: 10", None, id="smaller-quota"),
        pytest.param(ARGUMENTS, "< 100", "< 1000", "gate-check", id="arguments"),
        pytest.param("check: {type: loop, sameCall: 3}", "3", "9", "limit-raised", id="loop"),
        pytest.param(
            "check: {type: loop, sameCall: 3}", "3", "3, onExceeded: hold", "refusal-softened", id="softer-loop"
        ),
        pytest.param("check: {type: loop, sameCall: 3}", "3", "2", None, id="shorter-loop"),
        pytest.param("check: {type: budget, calls: 3, bytes: 1MiB}", ", bytes: 1MiB", "", "limit-raised", id="budget"),
        pytest.param("check: {type: budget, calls: 3, bytes: 1MiB}", "1MiB", "2MiB", "limit-raised", id="bytes"),
        pytest.param(
            "check: {type: budget, calls: 3, bytes: 1MiB}", "calls: 3", "calls: 4", "limit-raised", id="calls"
        ),
        pytest.param("check: {type: budget, calls: 3}", "calls: 3", "calls: 2", None, id="smaller-budget"),
        pytest.param(
            "check: {type: permission, object: class:payment}",
            "class:payment",
            "class:order",
            "gate-check",
            id="object",
        ),
    ],
)
def test_check_that_asks_less_is_named(tmp_path: Path, base: str, old: str, new: str, expected: str | None) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder in (before, after):
        edit(folder, "configs/gates.yaml", CHECK, base)
        (folder / "policies/tests/desk.yaml").unlink()
    edit(after, "configs/gates.yaml", base, base.replace(old, new))

    assert codes(plan_edit(before, after)) == ({(GATE[1], expected)} if expected else set())


@pytest.mark.parametrize(
    ("base", "old", "new", "expected"),
    [
        pytest.param(JWT, "[RS256]", "[RS256, ES256]", "algorithm-added", id="algorithm"),
        pytest.param(JWT, "}}}", "}}, clockSkew: 45s}", "clock-skew-raised", id="skew"),
        pytest.param(JWT, "}}}", "}}, trace: parent}", "trace-joined", id="trace"),
        pytest.param(JWT, "audience: [gateway]", "audience: [gateway, other]", "identity-changed", id="audience"),
        pytest.param(JWT, "desk: role:clerk", "desk: role:clerk, all: role:lead", "role-granted", id="mapped-role"),
        pytest.param(TOKEN, "[role:clerk]", "[role:clerk, role:lead]", "role-granted", id="token-role"),
        pytest.param(TOKEN, "2027-03-31", "2028-03-31", "token-prolonged", id="prolonged"),
        pytest.param(TOKEN, "CI_SHA256", "OTHER_SHA256", "token-added", id="other-token"),
    ],
)
def test_wider_identity_is_named(tmp_path: Path, base: str, old: str, new: str, expected: str) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder in (before, after):
        edit(folder, "configs/gateway.yaml", NONE, base)
    edit(after, "configs/gateway.yaml", base, base.replace(old, new))

    assert codes(plan_edit(before, after)) == {("IdentityProvider local", expected)}


@pytest.mark.parametrize(
    ("base", "old", "new", "expected"),
    [
        pytest.param(UPSTREAM, "exclude:", "onChange: accept, exclude:", "import-unpinned", id="unpinned"),
        pytest.param(UPSTREAM, "exclude:", "outputSchemas: ignore, exclude:", "results-unchecked", id="unchecked"),
        pytest.param(UPSTREAM, "[page_read]", "[page_read, page_list]", "import-widened", id="include"),
        pytest.param(UPSTREAM, ", exclude: [page_drop]", "", "import-widened", id="exclude"),
        pytest.param(UPSTREAM, "wiki.example.com", "wiki.example.org", "upstream-changed", id="server"),
        pytest.param(UPSTREAM, "url:", "networks: [fd00:20::/32], url:", "network-widened", id="network"),
        pytest.param(UPSTREAM, "tier: community", "tier: internal", "tool-more-trusted", id="import-tier"),
        pytest.param(UPSTREAM, ", flags: [egress]", "", "flag-removed", id="import-flags"),
        pytest.param(
            UPSTREAM, "exclude:", 'tools: {"page_*": {flags: []}}, exclude:', "effects-declared", id="import-tools"
        ),
        pytest.param(UNDECLARED, "{tier: community}", "{tier: community, flags: []}", "effects-declared", id="effects"),
        pytest.param(BY_PATTERN, "[egress, writes]", "[egress]", "flag-removed", id="pattern-flags"),
        pytest.param(BY_PATTERN, 'tools: {"page_*": {flags: [egress, writes]}}, ', "", "flag-removed", id="no-pattern"),
        pytest.param(TELEMETRY, "arguments: keys", "arguments: values", "capture-widened", id="capture"),
        pytest.param(TELEMETRY, "keys}", "keys, callers: name}", "capture-widened", id="callers"),
        pytest.param(TELEMETRY, "type: console}}", "type: none}}", "telemetry-reduced", id="no-traces"),
        pytest.param(
            TELEMETRY, "type: console}", "type: console}, sample: {always: [error]}", "refusals-sampled", id="sampling"
        ),
    ],
)
def test_looser_binding_is_named(tmp_path: Path, base: str, old: str, new: str, expected: str) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder, text in ((before, base), (after, base.replace(old, new))):
        path = folder / "configs/gateway.yaml"
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")

    assert expected in {code for _, code in codes(plan_edit(before, after))}


def test_effects_that_become_unknown_or_declared_are_named(tmp_path: Path) -> None:
    declared, unknown = copy_project(tmp_path / "declared"), copy_project(tmp_path / "unknown")
    for folder in (declared, unknown):
        edit(folder, "configs/catalogues.yaml", "  forbidTogether:\n    - [private-data, egress]\n", "")
    edit(unknown, "configs/tools.yaml", ", flags: [private-data]", "")

    lost = {each.code: each for each in plan_edit(declared, unknown).findings if each.about == "Tool order_read"}
    found = {each.code: each for each in plan_edit(unknown, declared).findings if each.about == "Tool order_read"}

    assert lost.keys() == {"effects-unknown", "flag-removed"}
    assert lost["flag-removed"].note == "private-data"
    assert found.keys() == {"effects-declared", "flag-private-data"}
    assert found["effects-declared"].note == "writes, destructive, egress"


def test_new_tool_of_unknown_effects_is_named(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder in (before, after):
        edit(folder, "configs/catalogues.yaml", "  forbidTogether:\n    - [private-data, egress]\n", "")
    tools = after / "configs/tools.yaml"
    first = tools.read_text(encoding="utf-8").partition("---\n")[0]
    added = first.replace("order_read", "order_seek").replace(", flags: [private-data]", "")
    tools.write_text(f"{tools.read_text(encoding='utf-8')}---\n{added}", encoding="utf-8")

    plan = plan_edit(before, after)

    assert ("Tool order_seek", "tool-unknown") in codes(plan)
    assert next(each.summary for each in plan.documents if each.name == "order_seek") == "internal · unknown effects"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param("[10.0.0.0/8]", "[10.1.0.0/16, 10.2.0.0/16]", None, id="parts"),
        pytest.param("[10.1.0.0/16]", "[10.0.0.0/8]", "10.0.0.0/8", id="wider"),
        pytest.param("[10.0.0.0/8]", "[10.0.0.0/8, fd00::/8]", "fd00::/8", id="another"),
        pytest.param("[10.0.0.0/8]", "[]", None, id="none"),
    ],
)
def test_only_networks_that_could_not_be_reached_are_named(
    tmp_path: Path, old: str, new: str, expected: str | None
) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder, networks in ((before, old), (after, new)):
        edit(folder, "configs/tools.yaml", "method: POST,", f"method: POST, networks: {networks},")

    found = [each for each in plan_edit(before, after).findings if each.code == "network-widened"]

    assert [(each.about, each.path, each.note) for each in found] == (
        [("Tool refund_pay", "backend.networks", expected)] if expected else []
    )


def test_new_tool_that_reaches_inside_is_named(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    path = after / "configs/tools.yaml"
    new = path.read_text(encoding="utf-8").split("---\n")[0].replace("order_read", "order_list")
    new = new.replace("method: GET,", "method: GET, networks: [192.168.0.0/16],")
    path.write_text(f"{path.read_text(encoding='utf-8')}\n---\n{new}", encoding="utf-8")

    assert ("Tool order_list", "network-widened") in codes(plan_edit(before, after))


def test_removed_gate_is_a_control_that_disappears(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    (after / "configs/gates.yaml").unlink()
    (after / "policies/tests/desk.yaml").unlink()

    assert ("GateRule large-refunds", "gate-removed") in codes(plan_edit(before, after))


def test_tool_that_loses_a_label_escapes_its_gate(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder in (before, after):
        edit(folder, "configs/gates.yaml", "match: {tools: [refund_pay]}", "match: {labels: {system: payments}}")
    edit(after, "configs/tools.yaml", "{system: payments}", "{system: billing}")

    found = [each for each in plan_edit(before, after).findings if each.code == "gate-escaped"]

    assert [(each.about, each.note) for each in found] == [("GateRule large-refunds", "refund_pay in desk")]


def test_catalogue_that_moves_to_a_weaker_pipeline_is_named(tmp_path: Path) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    lax = "\n---\napiVersion: gateway/v1\nkind: Pipeline\nmetadata: {name: lax, owner: team}\nspec: {}\n"
    for folder in (before, after):
        path = folder / "configs/gateway.yaml"
        path.write_text(path.read_text(encoding="utf-8") + lax, encoding="utf-8")
    edit(before, "configs/catalogues.yaml", "  publish:", "  pipeline: standard\n  publish:")
    edit(after, "configs/catalogues.yaml", "  publish:", "  pipeline: lax\n  publish:")
    for folder in (before, after):
        (folder / "configs/gates.yaml").unlink()
        (folder / "policies/tests/desk.yaml").unlink()

    assert codes(plan_edit(before, after)) == {
        ("Catalogue desk", "pipeline-without-gates"),
        ("Catalogue desk", "pipeline-without-timeout"),
    }


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(
            "p, role:agent, *,         class:payment, invoke,         quarantine, deny\n", "", "deny-removed", id="deny"
        ),
        pytest.param(
            "invoke,         quarantine, deny", "invoke,         internal, deny", "deny-narrowed", id="lower-deny"
        ),
        pytest.param("quarantine, deny", "quarantine, allow", "deny-removed", id="deny-to-allow"),
        pytest.param("partner,    allow", "quarantine, allow", "ceiling-raised", id="ceiling"),
        pytest.param("read,            internal", "read|invoke, internal", "actions-widened", id="actions"),
        pytest.param("discover|invoke, partner", "discover|invoke|approve, partner", "authority-granted", id="approve"),
        pytest.param(
            "p, role:lead,  *, ",
            "p, role:agent, desk, tool:*, discover, internal, allow\np, role:lead,  *, ",
            "allow-added",
            id="row",
        ),
        pytest.param(
            "discover|invoke, partner,    allow", "invoke|discover, partner,    allow", None, id="same-actions"
        ),
        pytest.param(
            "p, role:clerk, desk,      tool:*,       discover|invoke, partner,    allow",
            "p, role:clerk, desk, tool:*, discover, partner, allow\n"
            "p, role:clerk, desk, tool:*, invoke, partner, allow",
            None,
            id="split-row",
        ),
    ],
)
def test_row_that_lets_more_through_is_named(tmp_path: Path, old: str, new: str, expected: str | None) -> None:
    plan = edit_project(tmp_path, {"policies/policy.csv": (old, new)})

    assert expected in {code for _, code in codes(plan)} if expected else codes(plan) == set()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(
            "g, user:kim,    role:lead", "g, user:kim,    role:lead\ng, user:ana, role:lead", "role-widened", id="role"
        ),
        pytest.param("g, agent:bot,   role:agent\n", "", "deny-role-left", id="left"),
        pytest.param("g2, tool:refund_pay, class:payment", "", "group-changed", id="group"),
    ],
)
def test_link_that_lets_more_through_is_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    plan = edit_project(tmp_path, {"policies/roles.csv": (old, new)})

    assert expected in {code for _, code in codes(plan)}


def test_every_finding_is_in_the_table_and_every_line_of_the_table_can_be_found() -> None:
    package = ROOT / "gateway" / "review"
    source = "".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.stem != "risk")
    computed = {"flag-egress", "flag-destructive", "flag-private-data", "test-removed", "test-changed"}

    assert [code for code in RISKS if f'"{code}"' not in source and code not in computed] == []


FLOW = 'redact: ["$.email"], flow: {maxTier: partner, blockedBy: [egress]}}'
OTHER = """
---
apiVersion: gateway/v1
kind: ArtifactClass
metadata: {name: other, owner: team-orders}
spec: {description: Something else., base: json, """


@pytest.mark.parametrize(
    ("flow", "is_named"),
    [
        pytest.param(FLOW, False, id="same"),
        pytest.param(FLOW.replace("partner", "internal"), False, id="stricter"),
        pytest.param(FLOW.replace("partner", "community"), True, id="further"),
        pytest.param(FLOW.replace("maxTier: partner, ", ""), True, id="anywhere"),
        pytest.param(FLOW.replace("[egress]", "[writes]"), True, id="other-flag"),
        pytest.param(FLOW.replace("$.email", "$.phone"), True, id="other-mask"),
    ],
)
def test_class_that_guards_less_is_named(tmp_path: Path, flow: str, is_named: bool) -> None:
    before, after = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder in (before, after):
        edit(folder, "configs/tools.yaml", 'redact: ["$.email"]}', FLOW)
        with (folder / "configs/tools.yaml").open("a", encoding="utf-8") as file:
            file.write(f"{OTHER}{flow}\n")
    edit(after, "configs/tools.yaml", "artifact: order,", "artifact: other,")

    assert (("Tool order_read", "result-reclassified") in codes(plan_edit(before, after))) is is_named
