"""`gateway tools`, run as a user runs it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
DAY = ("--on", "2026-11-16")

OLD_NAME = """
---
apiVersion: gateway/v1
kind: Tool
metadata: {name: order_find, title: "[bold]Find", owner: team-orders}
spec:
  version: 0.9.0
  lifecycle: deprecated
  deprecation: {since: "2026-09-01", removeAfter: "2029-12-31", use: order_read}
  description: Old name of order_read.
  trust: {tier: internal, flags: []}
  input: {schema: {type: object, properties: {}}}
  backend: {type: http, method: GET, url: "http://127.0.0.1:9000/orders"}
---
apiVersion: gateway/v1
kind: Tool
metadata: {name: orderRead, owner: team-orders}
spec:
  version: 1.0.0
  description: Wants the name of another.
  onCollision: keep
  trust: {tier: internal, flags: []}
  input: {schema: {type: object, properties: {}}}
  backend: {type: http, method: GET, url: "http://127.0.0.1:9000/orders"}
---
apiVersion: gateway/v1
kind: Upstream
metadata: {name: shop, owner: team-orders}
spec:
  transport: {type: streamable-http, url: "http://127.0.0.1:9001/mcp"}
  import: {include: [order_list], trust: {tier: internal, flags: []}}
---
apiVersion: gateway/v1
kind: Tool
metadata: {name: order_list, owner: team-orders}
spec:
  version: 1.0.0
  description: Lists orders.
  trust: {tier: internal, flags: []}
  backend: {type: mcp, upstream: shop, tool: order_list}
"""


def run(*args: str, project: Path = SMALL) -> subprocess.CompletedProcess[str]:
    return run_gateway("tools", "--project", str(project), *DAY, *args)


def read_json(*args: str, project: Path = SMALL) -> Any:
    answer = run(*args, project=project)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small project with a deprecated name, a taken name, and a tool whose schema only a server knows."""
    folder = tmp_path_factory.mktemp("grown")
    shutil.copytree(SMALL, folder, dirs_exist_ok=True)
    with (folder / "configs" / "tools.yaml").open("a", encoding="utf-8") as file:
        file.write(OLD_NAME)
    catalogue = folder / "configs" / "catalogues.yaml"
    text = catalogue.read_text(encoding="utf-8")
    text = text.replace('"order_*", refund_pay]}', '"order*", refund_pay]}').replace(
        "  publish:", "  hidden: [order_find]\n  publish:"
    )
    catalogue.write_text(text, encoding="utf-8")
    (folder / "policies" / "tests" / "desk.yaml").unlink()
    return folder


def test_the_only_catalogue_is_a_table_of_its_tools() -> None:
    answer = run()

    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == (
        "name        tier      flags         effects   lifecycle  backend  owner         gates\n"
        "order_read  internal  private-data  declared  active     http     team-orders\n"
        "refund_pay  partner   writes        declared  active     http     team-finance  large-refunds\n"
    )


def test_unknown_effects_are_reported_as_such(tmp_path: Path) -> None:
    """The table shows no undeclared flags; the JSON has the effects that the tool counts as."""
    project = tmp_path / "project"
    shutil.copytree(SMALL, project)
    tools = project / "configs" / "tools.yaml"
    tools.write_text(tools.read_text().replace(", flags: [private-data]", ""), encoding="utf-8")

    row = next(line for line in run(project=project).stdout.splitlines() if line.startswith("order_read"))
    assert row.split()[:4] == ["order_read", "internal", "unknown", "active"]
    read = next(each for each in read_json("--output", "json", project=project) if each["name"] == "order_read")
    assert (read["effects"], read["flags"]) == ("unknown", ["destructive", "egress", "writes"])


def test_several_catalogues_are_a_table_with_counts() -> None:
    lines = [line.split() for line in run(project=ROOT).stdout.splitlines()]

    columns = ["name", "title", "tools", "prompts", "resources", "hidden", "path", "pipeline", "audience", "owner"]
    assert lines[0] == columns
    assert [line[0] for line in lines[1:]] == ["engineering", "finance", "support"]


def test_hidden_tools_are_shown_on_request(grown: Path) -> None:
    assert [tool["name"] for tool in read_json("--output", "json", project=grown)] == [
        "order_list",
        "order_read",
        "refund_pay",
    ]
    (old,) = [tool for tool in read_json("--all", "--output", "json", project=grown) if tool["hidden"]]
    assert (old["name"], old["title"], old["lifecycle"]) == ("order_find", "[bold]Find", "deprecated")


@pytest.mark.parametrize(
    ("caller", "expected"),
    [
        pytest.param(["--as", "user:ana"], {"order_read": ("yes", "no"), "refund_pay": ("yes", "perhaps")}, id="clerk"),
        pytest.param(["--as", "user:kim"], {"order_read": ("no", "no"), "refund_pay": ("no", "no")}, id="lead"),
        pytest.param(["--as", "agent:bot"], {"order_read": ("yes", "no"), "refund_pay": ("no", "no")}, id="agent"),
        pytest.param(
            ["--as", "user:eve", "--role", "role:clerk"],
            {"order_read": ("yes", "no"), "refund_pay": ("yes", "perhaps")},
            id="role-of-a-token",
        ),
        pytest.param(["--as", "user:eve"], {}, id="stranger"),
    ],
)
def test_caller_is_shown_what_they_get(caller: list[str], expected: dict[str, tuple[str, str]]) -> None:
    rows = read_json(*caller, "--output", "json")

    assert {row["name"]: (row["mayCall"], row["held"]) for row in rows} == expected


def test_caller_outside_the_audience_gets_the_reason() -> None:
    answer = run("--as", "user:eve")

    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr.splitlines()[0] == "note: user:eve is not in the audience of desk: role:clerk, role:lead"


def test_permission_that_a_gate_asks_for_decides_who_may_call() -> None:
    def refund(caller: str) -> Any:
        rows = read_json("finance", "--as", caller, "--output", "json", project=ROOT)
        return next(row["mayCall"] for row in rows if row["name"] == "payment_refund")

    assert (refund("user:kim"), refund("user:max")) == ("yes", "no")


def test_definitions_of_providers_hold_the_closed_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"order": {"type": "string"}},
        "required": ["order"],
        "additionalProperties": False,
    }

    first = {provider: read_json("--output", provider)[0] for provider in ("openai", "anthropic", "gemini", "mcp")}

    words = {"name": "order_read", "description": "Reads one order."}
    assert first["openai"] == {"type": "function", "function": {**words, "parameters": schema}}
    assert first["anthropic"] == {**words, "input_schema": schema}
    assert first["gemini"] == {**words, "parametersJsonSchema": schema}
    hints = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
    assert first["mcp"] == {**words, "inputSchema": schema, "annotations": hints}


def test_deprecation_is_part_of_the_description(grown: Path) -> None:
    (old,) = [tool for tool in read_json("--all", "--output", "mcp", project=grown) if tool["name"] == "order_find"]

    assert old["title"] == "[bold]Find"
    assert old["description"] == (
        "Old name of order_read.\n\nDeprecated: goes away after 2029-12-31. Use order_read instead."
    )


def test_tool_whose_schema_is_unknown_is_left_out_and_named(grown: Path) -> None:
    answer = run("--output", "openai", project=grown)

    assert [each["function"]["name"] for each in json.loads(answer.stdout)] == ["order_read", "refund_pay"]
    assert answer.stderr == "note: left out, because only their upstream knows the schema: order_list\n"


def test_definitions_need_one_catalogue() -> None:
    answer = run("--output", "mcp", project=ROOT)

    assert (answer.returncode, answer.stdout) == (2, "")
    assert "name one: engineering, finance, support" in answer.stderr


def test_collisions_are_reported_with_their_outcome(grown: Path) -> None:
    (collision,) = read_json("--collisions", "--output", "json", project=grown)

    assert (collision["catalogue"], collision["name"], collision["outcome"]) == ("desk", "orderRead", "keep")
    assert collision["because"] == "the incoming tool has onCollision: keep"
    assert run("--collisions", project=grown).stdout.splitlines()[1].split()[:3] == ["desk", "tool", "orderRead"]
    assert run("--collisions").stdout == "there are no collisions\n"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(["dek"], "there is no catalogue 'dek'; did you mean 'desk'?", id="catalogue"),
        pytest.param(["configs"], "there is no catalogue 'configs'; there are: desk;", id="folder"),
        pytest.param(["--as", "ana"], "'ana' is not a subject; write one with its prefix", id="subject"),
        pytest.param(["--as", "user:ana", "--role", "clerk"], "'clerk' is not a role;", id="role"),
        pytest.param(["--role", "role:clerk"], "--role needs --as;", id="role-alone"),
    ],
)
def test_wrong_words_are_one_line_and_exit_code_two(args: list[str], words: str) -> None:
    answer = run(*args)

    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"error: {words}")
    assert answer.stderr.count("\n") == 1


def test_project_with_errors_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Tol\n", encoding="utf-8")

    answer = run(project=tmp_path)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert "unknown-kind" in answer.stderr


def test_reader_that_goes_away_is_no_accident() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "gateway", "tools", "--project", str(SMALL), *DAY]

    answer = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)

    assert "Traceback" not in answer.stderr
