"""The `gateway` command, run as a user runs it."""

import json
import subprocess
from pathlib import Path

import pytest

import gateway
from tests.support.gateways.commands import run_gateway


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_gateway(*args, input=stdin)


def test_version_is_printed() -> None:
    assert run("--version").stdout == f"{gateway.__version__}\n"


def test_help_lists_the_subcommands() -> None:
    answer = run("--help")

    assert answer.returncode == 0
    assert "call-id" in answer.stdout


def test_call_id_equals_the_library_whatever_the_key_order() -> None:
    expected = gateway.call_id("echo", {"a": 1, "b": [2.0]}) + "\n"

    assert run("call-id", "echo", '{"b": [2], "a": 1.0}').stdout == expected
    assert run("call-id", "echo", "-", stdin='{"a": 1, "b": [2]}').stdout == expected


def test_canonical_text_can_be_shown() -> None:
    assert run("call-id", "echo", '{"b": 1, "a": 2}', "--canonical").stdout == '{"args":{"a":2,"b":1},"tool":"echo"}\n'


@pytest.mark.parametrize(
    "args",
    [pytest.param("[1]", id="list"), pytest.param("{", id="broken"), pytest.param("[" * 100_000, id="deep")],
)
def test_bad_arguments_get_one_line_and_exit_code_two(args: str) -> None:
    answer = run("call-id", "echo", "-", stdin=args)

    assert answer.returncode == 2
    assert answer.stderr.startswith("error: the arguments cannot be read: ")
    assert answer.stderr.count("\n") == 1


def test_explain_documents_a_field() -> None:
    answer = run("explain", "tool.spec.limits")

    assert answer.returncode == 0
    assert "timeout" in answer.stdout
    assert "Maximum duration of a call." in answer.stdout


def test_explain_of_an_unknown_field_suggests_one() -> None:
    answer = run("explain", "tool.spec.limts")

    assert (answer.returncode, answer.stdout) == (2, "")
    assert "limits" in answer.stderr


def test_schema_is_printed_or_written(tmp_path: Path) -> None:
    file = tmp_path / ".schema" / "gateway.v1.json"

    assert run("schema", "--write", str(file)).stdout == f"wrote {file}\n"
    assert file.read_text(encoding="utf-8") == run("schema").stdout
    assert json.loads(file.read_text(encoding="utf-8"))["$schema"]


def test_schema_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    answer = run("schema", "--write", str(tmp_path))

    assert answer.returncode == 1
    assert answer.stderr.startswith(f"error: {tmp_path} cannot be written: ")
