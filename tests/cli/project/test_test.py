"""`gateway test`, run as a user runs it."""

import json
import os
import shutil
from contextlib import chdir
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"


def run(*args: str, folder: Path = SMALL) -> Result:
    with chdir(folder):
        return CliRunner().invoke(app, ["test", *args], prog_name="gateway")


def run_apart(*args: str, folder: Path = SMALL, **environ: str) -> str:
    """The output of a separate process with its own environment."""
    return run_gateway("test", *args, cwd=folder, env={**os.environ, **environ}).stdout


@pytest.fixture
def raised_limit(tmp_path: Path) -> Path:
    """The small project with a raised limit in a gate rule."""
    folder = tmp_path / "raised"
    shutil.copytree(SMALL, folder)
    gates = folder / "configs" / "gates.yaml"
    gates.write_text(gates.read_text(encoding="utf-8").replace("> 500", "> 1000"), encoding="utf-8")
    return folder


def test_cases_that_hold_state_what_decided() -> None:
    answer = run("--on", "2026-11-16")

    assert answer.stdout == (
        "policies/tests/desk.yaml\n"
        "  ✓ a clerk pays a small refund  allow  policies/policy.csv:2\n"
        "  ✓ a large refund waits         hold   configs/gates.yaml:3\n"
        "  ✓ an agent does not pay        deny   policies/policy.csv:5\n"
        "  ✓ a stranger sees nothing      0 tools\n"
        "4 passed; rules that decided nothing: policy.csv:4   (3 of 4 used)\n"
    )
    assert (answer.exit_code, answer.stderr) == (0, "")


def test_case_that_fails_states_which_part_of_the_condition_is_false(raised_limit: Path) -> None:
    answer = run("--on", "2026-11-16", folder=raised_limit)

    assert answer.exit_code == 1
    assert (
        "  ✗ a large refund waits         expected hold by gate large-refunds, got allow by role:clerk\n"
        "      gate large-refunds: args.amount > 1000 is false for amount 900   configs/gates.yaml:3\n"
    ) in answer.stdout
    assert answer.stdout.splitlines()[-1].startswith("3 passed, 1 failed; rules that decided nothing: ")


def test_folder_of_policies_names_the_project() -> None:
    assert run("policies", "--on", "2026-11-16").stdout == run("--on", "2026-11-16").stdout


def test_coverage_lists_rules_and_tools_without_a_case() -> None:
    lines = run("--coverage", "--on", "2026-11-16").stdout.splitlines()

    listed = lines[lines.index("no case is about") + 1 : -1]
    assert listed == [
        "policies/policy.csv:4  role:lead, *, tool:*, discover|approve, quarantine, allow",
        "configs/tools.yaml:3   Tool order_read",
    ]


def test_filter_chooses_by_name_of_case_or_suite() -> None:
    by_case, by_suite = run("--filter", "STRANGER"), run("--filter", "desk")

    assert by_case.stdout.splitlines()[-1] == "1 passed"
    assert by_suite.stdout.splitlines()[-1] == "4 passed"


def test_filter_without_any_case_is_wrong_use() -> None:
    answer = run("--filter", "nothing like it")

    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr == "error: no case, and no suite, has 'nothing like it' in its name\n"


@pytest.mark.parametrize(("option", "code"), [((), 0), (("--fail-on-empty",), 1)], ids=["default", "fail-on-empty"])
def test_project_without_cases(tmp_path: Path, option: tuple[str, ...], code: int) -> None:
    folder = tmp_path / "empty"
    shutil.copytree(SMALL, folder, ignore=shutil.ignore_patterns("tests"))

    answer = run(*option, folder=folder)

    assert (answer.exit_code, answer.stdout) == (
        code,
        "there are no policy tests; write cases in a document of kind PolicyTest\n",
    )


def test_project_with_errors_is_not_tested(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(SMALL, folder)
    (folder / "configs" / "more.yaml").write_text("kind: Tol\n", encoding="utf-8")

    answer = run(folder=folder)

    assert (answer.exit_code, answer.stdout) == (1, "")
    assert "configs/more.yaml:1:7: unknown-kind: there is no kind 'Tol'" in answer.stderr


def test_json_has_every_case_and_the_coverage(raised_limit: Path) -> None:
    answer = run("--output", "json", "--on", "2026-11-16", folder=raised_limit)

    document = json.loads(answer.stdout)
    assert answer.exit_code == 1
    assert (document["passed"], document["failed"]) == (3, 1)
    assert document["cases"][1] == {
        "suite": "desk",
        "name": "a large refund waits",
        "file": "policies/tests/desk.yaml",
        "line": 12,
        "passed": False,
        "expected": {"decision": "hold", "because": {"gate": "large-refunds"}},
        "got": {"decision": "allow", "because": {"policy": "role:clerk"}},
        "decidedAt": "policies/policy.csv:2",
        "failure": ["gate large-refunds: args.amount > 1000 is false for amount 900   configs/gates.yaml:3"],
    }
    assert document["cases"][3]["got"] == {"tools": []}
    assert document["coverage"] == {
        "policyRows": {
            "used": ["policies/policy.csv:2", "policies/policy.csv:5"],
            "idle": ["policies/policy.csv:4"],
        },
        "gateRules": {"used": [], "idle": ["large-refunds"]},
        "tools": {"called": ["refund_pay"], "uncalled": ["order_read"]},
    }


def test_coverage_of_a_few_cases_is_not_reported() -> None:
    assert json.loads(run("--output", "json", "--filter", "stranger").stdout)["coverage"] is None


def test_junit_has_a_case_for_each_case(raised_limit: Path) -> None:
    tests = raised_limit / "policies" / "tests" / "desk.yaml"
    text = tests.read_text(encoding="utf-8")
    tests.write_text(text.replace("a clerk pays a small", "a <clerk> pays a “small”"), encoding="utf-8")

    answer = run_apart("--output", "junit", "--on", "2026-11-16", folder=raised_limit, PYTHONIOENCODING="ascii")

    suites = ElementTree.fromstring(answer)
    cases = list(suites.iter("testcase"))
    assert suites.attrib == {"name": "gateway test", "tests": "4", "failures": "1", "errors": "0"}
    assert cases[0].attrib["name"] == "a <clerk> pays a “small” refund"
    assert [case.attrib["name"] for case in cases if case.find("failure") is not None] == ["a large refund waits"]


def test_terminal_that_knows_ascii_only_gets_ascii(raised_limit: Path) -> None:
    answer = run_apart("--on", "2026-11-16", folder=raised_limit, PYTHONIOENCODING="ascii")

    assert answer.isascii()
    assert "  ok   a clerk pays a small refund  allow  policies/policy.csv:2\n" in answer
    assert "  FAIL a large refund waits         expected hold" in answer


def test_no_escape_reaches_a_pipe() -> None:
    assert "\x1b" not in run_apart(PYTHONIOENCODING="utf-8", FORCE_COLOR="1", CLICOLOR_FORCE="1")


def test_example_configuration_holds() -> None:
    answer = run("--fail-on-empty", "--on", "2026-11-16", folder=ROOT)

    assert answer.exit_code == 0, answer.stdout + answer.stderr
