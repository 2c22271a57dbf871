"""How the command starts: its imports, its list of subcommands, and its exit."""

import subprocess
import sys

import pytest

from gateway.cli.main import Subcommand, _Commands, load_command

HEAVY = {"casbin", "yaml", "cel", "lxml", "jsonpath", "gateway.config"}  # pydantic: typer itself reads options with it


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["--version"], id="version"),
        pytest.param(["--help"], id="help"),
        pytest.param(["call-id", "a", "{}"], id="call-id"),
    ],
)
def test_small_commands_import_no_engine(args: list[str]) -> None:
    script = """
import sys
from gateway.cli.main import main
try:
    main()
finally:
    print("\\n".join(sys.modules), file=sys.stderr)
"""

    answer = subprocess.run([sys.executable, "-c", script, *args], capture_output=True, text=True)

    assert answer.returncode == 0
    assert HEAVY.isdisjoint(answer.stderr.splitlines())


@pytest.mark.parametrize("subcommand", _Commands.subcommands, ids=lambda each: each.name)
def test_summary_in_the_list_begins_like_the_help_of_the_command(subcommand: Subcommand) -> None:
    help = load_command(subcommand).help or ""

    assert help.split()[:2] == subcommand.summary.split()[:2]


def test_unknown_command_suggests_a_known_one() -> None:
    answer = subprocess.run([sys.executable, "-m", "gateway", "chek"], capture_output=True, text=True)

    assert (answer.returncode, answer.stdout) == (2, "")
    assert "'check'" in answer.stderr


def test_help_shows_what_exit_codes_mean() -> None:
    answer = subprocess.run([sys.executable, "-m", "gateway", "-h"], capture_output=True, text=True)

    assert "Usage: gateway " in answer.stdout
    assert "Exit codes: 0 all is well, 1 problems were found, 2" in answer.stdout
