"""The `gateway` command, run as a user runs it."""

import subprocess
import sys

import pytest

import gateway


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gateway", *args], input=stdin, capture_output=True, text=True)


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
    assert answer.stderr.startswith("the arguments cannot be used: ")
    assert answer.stderr.count("\n") == 1
