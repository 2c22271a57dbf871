"""`gateway explain call` for a turn with earlier calls."""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
REFUND = ("refund_pay", "--as", "user:ana", "--with", "order=A1", "--with", "amount=20", "--at", "2026-11-16T10:00:00Z")
FLOW = 'redact: ["$.email"], flow: {blockedBy: [writes]}}'
RULES = """
---
apiVersion: gateway/v1
kind: GateRule
metadata: {name: in-circles, owner: team-orders}
spec:
  description: Nobody pays the same refund three times.
  match: {tools: [refund_pay]}
  check: {type: loop, sameCall: 2}
---
apiVersion: gateway/v1
kind: GateRule
metadata: {name: short-turns, owner: team-orders}
spec:
  description: A turn of three calls is over.
  match: {tools: [refund_pay]}
  check: {type: budget, calls: 3, onExhausted: hold}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("turns") / "p"
    shutil.copytree(SMALL, folder)
    tools, gates = folder / "configs" / "tools.yaml", folder / "configs" / "gates.yaml"
    changed = tools.read_text(encoding="utf-8").replace('redact: ["$.email"]}', FLOW)
    assert FLOW in changed
    tools.write_text(changed, encoding="utf-8")
    gates.write_text(gates.read_text(encoding="utf-8") + RULES, encoding="utf-8")
    return folder


def run(folder: Path, *args: str) -> Result:
    with chdir(folder):
        return CliRunner().invoke(app, ["explain", "call", *REFUND, *args], prog_name="gateway")


def rules(answer: Result) -> list[str]:
    return [" ".join(line.split()) for line in answer.stdout.partition("gate rules about the tool\n")[2].splitlines()]


def test_turn_that_has_done_nothing_is_let_through(project: Path) -> None:
    answer = run(project)

    assert answer.stdout.startswith("allow: user:ana calls refund_pay in desk; decided by policy role:clerk\n")
    assert rules(answer) == [
        "class:order allow this turn has not read order configs/tools.yaml:28",
        "in-circles allow the same call was made 0 of 2 times in this turn configs/gates.yaml:13",
        "large-refunds not about it args.amount > 500 is false for amount 20 configs/gates.yaml:3",
        "short-turns allow the budget of this turn is not used up configs/gates.yaml:21",
    ]


@pytest.mark.parametrize("expected", [("--read", "order"), ("--after", "order_read")], ids=["read", "after"])
def test_class_that_was_read_is_reported_with_its_place(project: Path, expected: tuple[str, ...]) -> None:
    answer = run(project, *expected)

    assert answer.stdout.startswith("deny: user:ana calls refund_pay in desk; decided by class order\n")
    assert rules(answer)[0] == (
        "class:order deny this turn has read order, which may not flow to tools with the flag 'writes'"
        " configs/tools.yaml:28"
    )


def test_same_call_again_is_reported(project: Path) -> None:
    answer = run(project, "--repeated", "2")

    assert answer.stdout.startswith("deny: user:ana calls refund_pay in desk; decided by gate in-circles\n")
    assert "in-circles deny the same call was made 2 times in this turn configs/gates.yaml:13" in rules(answer)


def test_calls_of_the_turn_are_counted(project: Path) -> None:
    answer = run(project, "--repeated", "1", "--after", "refund_pay", "--after", "refund_pay")

    assert answer.stdout.startswith("hold: user:ana calls refund_pay in desk; decided by gate short-turns\n")
    assert "short-turns hold this turn has made 3 calls of 3 configs/gates.yaml:21" in rules(answer)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--read", "ordr"), "there is no artifact class 'ordr'; did you mean 'order'?"),
        (("--after", "zebra"), "there is no tool in desk 'zebra'; there are order_read, refund_pay"),
    ],
)
def test_what_is_not_declared_is_reported_in_one_line(project: Path, args: tuple[str, ...], expected: str) -> None:
    answer = run(project, *args)

    assert (answer.exit_code, answer.stderr) == (2, f"error: {expected}\n")
