"""`gateway explain`, run as a user runs it."""

import json
import shutil
from contextlib import chdir
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gateway.app.project import ProjectFolders, load_project
from gateway.cli.main import app
from gateway.cli.project.explain import choose_catalogue
from gateway.config.reports.diagnostic_codes import CODES
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
MONDAY = ("--at", "2026-11-16T10:00:00Z")
REFUND = ("call", "refund_pay", "--as", "user:ana", "--with", "order=A1", *MONDAY)


def run(*args: str, folder: Path = SMALL, stdin: str = "") -> Result:
    with chdir(folder):
        return CliRunner().invoke(app, ["explain", *args], input=stdin, prog_name="gateway")


@pytest.fixture
def larger(tmp_path: Path) -> Path:
    """The small project with gate rules of every mode, another catalogue and a tool with nested arguments."""
    folder = tmp_path / "larger"
    shutil.copytree(SMALL, folder)
    rule = (
        "---\napiVersion: gateway/v1\nkind: GateRule\nmetadata: {{name: {name}, owner: team-finance}}\nspec:\n  {spec}"
    )
    match = "description: A rule.\n  match: {tools: [refund_pay]}"
    approval = "check: {type: approval, from: [role:lead], timeout: 30m, reason: Somebody looks}"
    require = "check: {type: arguments, require: 'args.amount < 2000 && args.order != \"B2\"', message: too much}"
    rules = {
        "off": f"{match}\n  mode: disabled\n  {approval}",
        "only-looks": f'{match}\n  mode: observe\n  when: turn.saw("egress")\n  {approval}',
        "strict": f"{match}\n  {require}",
        "tiny": f'{match}\n  when: args.order == "A1" && args.amount < 5\n  {approval}',
    }
    (folder / "configs" / "more.yaml").write_text(
        "\n".join(rule.format(name=name, spec=spec) for name, spec in rules.items())
        + """
---
apiVersion: gateway/v1
kind: Tool
metadata: {name: order_tag, owner: team-orders}
spec:
  version: 1.0.0
  description: Tags an order.
  trust: {tier: internal, flags: [writes]}
  input:
    schema:
      type: object
      properties:
        tags: {type: array, items: {type: string}}
        note: {type: [string, "null"]}
        loud: {type: boolean}
        where: {type: object, properties: {shelf: {type: integer}}}
  backend: {type: http, method: POST, url: "http://127.0.0.1:9000/tags", body: {from: arguments}}
---
apiVersion: gateway/v1
kind: Catalogue
metadata: {name: till, owner: team-orders}
spec:
  audience: [role:clerk]
  include: [{tools: [refund_pay]}]
  publish: {path: /till}
""",
        encoding="utf-8",
    )
    return folder


def test_every_step_and_rule_of_a_held_call_is_reported() -> None:
    answer = run(*REFUND, "--with", "amount=900")

    assert answer.stdout == (
        "hold: user:ana calls refund_pay in desk; decided by gate large-refunds\n"
        "effects: declared: writes\n"
        "\n"
        "  audience   allow  desk is for role:clerk                                   configs/catalogues.yaml:3\n"
        "  tool       allow  the caller may know of it                                configs/tools.yaml:14\n"
        "  arguments  allow  they fit the schema\n"
        "  tier       allow  tools of tier 'partner' can be called                    configs/tools.yaml:14\n"
        "  lifecycle  allow  the tool is active                                       configs/tools.yaml:14\n"
        "  policy     allow  allowed to role:clerk by policies/policy.csv:2\n"
        "  gates      hold   large-refunds: A large refund: waits for 1 of role:lead  configs/gates.yaml:3\n"
        "\n"
        "gate rules about the tool\n"
        "  large-refunds  hold  A large refund: waits for 1 of role:lead  configs/gates.yaml:3\n"
        "                       asked because args.amount > 500 is true for amount 900\n"
    )
    assert (answer.exit_code, answer.stderr) == (0, "")


def test_rule_that_matches_because_effects_are_unknown_reports_it(larger: Path) -> None:
    more = larger / "configs" / "more.yaml"
    text = more.read_text(encoding="utf-8").replace("{tier: internal, flags: [writes]}", "{tier: internal}")
    writers = """
---
apiVersion: gateway/v1
kind: GateRule
metadata: {name: writers, owner: team-finance}
spec:
  description: What writes waits.
  match: {flags: [writes]}
  check: {type: approval, from: [role:lead], timeout: 30m, reason: It writes}
"""
    more.write_text(text + writers, encoding="utf-8")
    catalogue = larger / "configs" / "catalogues.yaml"
    without = catalogue.read_text(encoding="utf-8").replace("  forbidTogether:\n    - [private-data, egress]\n", "")
    catalogue.write_text(without, encoding="utf-8")
    asked = ("call", "order_tag", "--as", "user:ana", "--in", "desk", *MONDAY)

    expected, data = run(*asked, folder=larger), json.loads(run(*asked, "--output", "json", folder=larger).stdout)

    assert "effects: unknown, which counts as the worst: writes, destructive, egress\n" in expected.stdout, (
        expected.output
    )
    assert "matches because the effects are unknown, which counts as writes" in expected.stdout
    assert data["effects"].startswith("unknown")
    assert data["gateRules"][0]["notes"] == ["matches because the effects are unknown, which counts as writes"]


def test_steps_after_the_refusal_are_not_asked() -> None:
    answer = run("call", "refund_pay", "--as", "user:eve", *MONDAY)

    lines = answer.stdout.splitlines()
    assert answer.exit_code == 0
    assert lines[0] == "deny: user:eve calls refund_pay in desk; decided by the audience"
    assert [line.split()[0] for line in lines if line.endswith("not asked")] == [
        *("tool", "arguments", "tier", "lifecycle", "policy", "gates"),
    ]


def test_rule_that_does_not_apply_explains_why(larger: Path) -> None:
    answer = run(*REFUND, "--in", "desk", "--with", "amount=2500", "--saw", "egress", folder=larger)

    rules = answer.stdout.partition("gate rules about the tool\n")[2].splitlines()
    assert answer.stdout.startswith("deny: user:ana calls refund_pay in desk; decided by gate strict\n")
    assert [" ".join(line.split()) for line in rules] == [
        "large-refunds hold A large refund: waits for 1 of role:lead configs/gates.yaml:3",
        "asked because args.amount > 500 is true for amount 2500",
        "off disabled configs/more.yaml:4",
        "only-looks would hold Somebody looks: waits for 1 of role:lead configs/more.yaml:13",
        'asked because turn.saw("egress") is true',
        "strict deny too much configs/more.yaml:23",
        "args.amount < 2000 is false for amount 2500",
        "tiny not about it args.amount < 5 is false for amount 2500 configs/more.yaml:31",
    ]


def test_json_shows_the_same() -> None:
    document = json.loads(run(*REFUND, "--with", "amount=20", "--output", "json").stdout)

    assert (document["decision"], document["because"]) == ("allow", {"policy": "role:clerk"})
    assert document["call"] == {
        "tool": "refund_pay",
        "catalogue": "desk",
        "subject": "user:ana",
        "roles": [],
        "tenant": None,
        "at": "2026-11-16T10:00:00+00:00",
    }
    assert [step["answer"] for step in document["steps"]] == ["allow"] * 7
    assert document["steps"][5]["line"] == 2
    assert document["gateRules"] == [
        {
            "name": "large-refunds",
            "answer": "not about it",
            "reason": "args.amount > 500 is false for amount 20",
            "file": "configs/gates.yaml",
            "line": 3,
            "notes": [],
        }
    ]


def test_roles_of_the_token_count() -> None:
    answer = run("call", "order_read", "--as", "user:new", "--role", "role:clerk", "--with", "order=A1", *MONDAY)

    assert answer.stdout.startswith("allow: user:new calls order_read in desk; decided by policy role:clerk\n")


def test_arguments_may_come_as_json_from_standard_input() -> None:
    answer = run(
        "call", "refund_pay", "--as", "user:ana", "--args", "-", *MONDAY, stdin='{"order": "1", "amount": 501}'
    )

    assert answer.stdout.startswith("hold: ")


@pytest.mark.parametrize(
    ("pairs", "decision"),
    [
        (('tags=["a", "b"]', "note=[1]", "loud=true", 'where={"shelf": 3}'), "allow"),
        (("note=null", "loud=TRUE"), "allow"),
        (("loud=perhaps",), "deny"),
        (("tags=a",), "deny"),
        (("where={broken",), "deny"),
        (("where=3",), "deny"),
    ],
    ids=["nested", "null", "no-boolean", "no-list", "no-json", "no-object"],
)
def test_values_are_read_as_the_schema_asks(larger: Path, pairs: tuple[str, ...], decision: str) -> None:
    given = [part for pair in pairs for part in ("--with", pair)]

    answer = run("call", "order_tag", "--as", "user:ana", "--in", "desk", *given, *MONDAY, folder=larger)

    assert answer.stdout.startswith(f"{decision}: "), answer.output


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("refund_pya", "--as", "user:ana"), "there is no tool 'refund_pya'; did you mean 'refund_pay'?"),
        (("refund_pay", "--as", "user:ana", "--in", "dsk"), "there is no catalogue 'dsk'; did you mean 'desk'?"),
        (("refund_pay", "--as", "user:ana", "--in", "zzz"), "there is no catalogue 'zzz'; there are desk"),
        (
            ("refund_pay", "--as", "user:ana", "--with", "amuont=1"),
            "refund_pay takes no argument 'amuont'; did you mean 'amount'?",
        ),
        (
            ("refund_pay", "--as", "user:ana", "--args", '{"zzz": 1}'),
            "refund_pay takes no argument 'zzz'; it takes order, amount",
        ),
        (("refund_pay", "--as", "user:ana", "--with", "amount"), "'amount' is not an argument; write --with key=value"),
        (
            ("refund_pay", "--as", "user:ana", "--with", "amount=1", "--with", "amount=2"),
            "the argument 'amount' is given twice",
        ),
        (
            ("refund_pay", "--as", "user:ana", "--with", "amount=1", "--args", '{"amount": 2}'),
            "the argument 'amount' is given twice; give it in --with or in --args, not in both",
        ),
        (
            ("refund_pay", "--as", "user:ana", "--args", "[1]"),
            "--args is not a JSON object; write one: '{\"amount\": 900}'",
        ),
        (("refund_pay", "--as", "ana"), "'ana' is not a subject; write one with its prefix: user:ana, "),
        (
            ("refund_pay", "--as", "role:lead"),
            "'role:lead' calls nothing; name a caller who has the role: --as user:ana",
        ),
        (
            ("refund_pay", "--as", "user:ana", "--role", "lead"),
            "'lead' is not a role; write it with its prefix: role:clerk",
        ),
        (("refund_pay", "--as", "user:ana", "--at", "tomorrow"), "'tomorrow' is not a moment; write it with its time"),
        (("refund_pay", "--as", "user:ana", "--at", "2026-11-16T10:00"), "'2026-11-16T10:00' is not a moment; write"),
        (("refund_pay", "--as", "user:ana", "--at", "0001-01-01T00:00+10:00"), "'0001-01-01T00:00+10:00' is not a"),
        (("refund_pay", "--as", "user:ana", "--saw", "egres"), "there is no flag 'egres'; did you mean 'egress'?"),
    ],
)
def test_wrong_use_is_reported_in_one_line(args: tuple[str, ...], expected: str) -> None:
    answer = run("call", *args)

    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"error: {expected}")
    assert answer.stderr.count("\n") == 1


def test_arguments_that_are_no_json_are_reported_in_one_line() -> None:
    answer = run("call", "refund_pay", "--as", "user:ana", "--args", "-", stdin="[" * 100_000)

    assert answer.exit_code == 2
    assert answer.stderr.startswith("error: --args cannot be read: ")


def test_catalogue_is_asked_for_if_several_have_the_tool(larger: Path) -> None:
    answer = run(*REFUND, folder=larger)

    assert answer.exit_code == 2
    assert answer.stderr == "error: refund_pay is in desk, till; choose one: --in CATALOGUE\n"


def test_default_catalogue_counts_if_several_have_the_tool(larger: Path) -> None:
    gateway = larger / "configs" / "gateway.yaml"
    text = gateway.read_text(encoding="utf-8").replace("tier: quarantine}", "tier: quarantine, catalogue: till}")
    gateway.write_text(text, encoding="utf-8")

    answer = run(*REFUND, "--with", "amount=20", folder=larger)

    assert answer.stdout.startswith("deny: user:ana calls refund_pay in till; decided by the tool\n"), answer.stderr


def test_tool_of_another_catalogue_is_refused_and_found(larger: Path) -> None:
    answer = run("call", "order_read", "--as", "user:ana", "--in", "till", *MONDAY, folder=larger)

    assert answer.exit_code == 0
    assert answer.stdout.startswith("deny: user:ana calls order_read in till; decided by the tool\n")
    assert answer.stderr == "note: order_read is in desk\n"


def test_tool_by_its_own_name_is_found_under_the_name_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    found = load_project(ProjectFolders.from_folder(SMALL), environ={}, today=date(2026, 11, 16))
    assert found.access is not None
    desk = replace(found.access.snapshot.catalogues["desk"], tools={"pay_back": "refund_pay"})
    snapshot = replace(found.access.snapshot, catalogues={"desk": desk})

    with pytest.raises(typer.Exit):
        choose_catalogue(snapshot, "refund_pay", None)

    assert capsys.readouterr().err == "error: no catalogue has a tool named 'refund_pay'; its name is pay_back\n"


def test_tool_of_no_catalogue_is_distinguished_from_an_unknown_one(larger: Path) -> None:
    more = larger / "configs" / "more.yaml"
    more.write_text(more.read_text(encoding="utf-8").replace("order_tag", "label_order"), encoding="utf-8")

    answer = run("call", "label_order", "--as", "user:ana", *MONDAY, folder=larger)

    assert answer.exit_code == 2
    assert (
        answer.stderr == "error: the tool 'label_order' is in no catalogue; add it to one, so that it can be called\n"
    )


def test_project_with_errors_is_not_explained(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(SMALL, folder)
    (folder / "configs" / "more.yaml").write_text("kind: Tol\n", encoding="utf-8")

    answer = run(*REFUND, folder=folder)

    assert (answer.exit_code, answer.stdout) == (1, "")
    assert "configs/more.yaml:1:7: unknown-kind" in answer.stderr


@pytest.mark.parametrize(
    "args",
    [("tool.spec.trust.tier",), ("field", "tool.spec.trust.tier"), ("--recursive", "tool.spec.trust.tier")],
    ids=["field", "named", "option-first"],
)
def test_fields_are_documented_as_before(args: tuple[str, ...]) -> None:
    answer = run(*args)

    assert answer.exit_code == 0
    assert answer.stdout.startswith("Tool.spec.trust.tier\n")


def test_unknown_field_gets_a_suggestion() -> None:
    answer = run("tol")

    assert (answer.exit_code, answer.stderr) == (2, "error: there is no kind 'tol'; did you mean 'Tool'?\n")


def test_codes_of_problems_are_explained() -> None:
    answer = run("unknown-field")

    assert answer.exit_code == 0
    assert answer.stdout == f"unknown-field\n\n  {CODES['unknown-field']}\n"


def test_unknown_code_gets_a_suggestion() -> None:
    answer = run("unknwon-field")

    assert answer.exit_code == 2
    assert answer.stderr.endswith("did you mean 'unknown-field'?\n")


def test_help_shows_every_use() -> None:
    answer = run("--help")

    assert answer.exit_code == 0
    assert "FIELD | CODE | call TOOL" in answer.stdout
    assert "gateway explain call ticket_create" in answer.stdout
