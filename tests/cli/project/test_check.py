"""`gateway check`, run as a user runs it: in a pipe, and in a terminal."""

import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gateways.commands import run_gateway, start_command
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"


def run(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_gateway(*args, env={**os.environ, **environ})


def in_terminal(*args: str, **environ: str) -> str:
    """The output in a terminal, read until the command closes it."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environ}
    command = start_command(*args, stdout=theirs, env=variables)
    os.close(theirs)
    received = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # on Linux, the end of a terminal without writers
            break
        if not part:
            break
        received += part
    command.wait()
    os.close(ours)
    return received.decode().replace("\r\n", "\n")


def test_check_shows_every_problem_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Tol\n", encoding="utf-8")

    answer = run("check", str(tmp_path))

    assert answer.returncode == 1
    assert f"{tmp_path}/a.yaml:1:7: unknown-kind: there is no kind 'Tol'" in answer.stdout
    assert "1 | kind: Tol\n  |       ^^^\n  = did you mean 'Tool'?" in answer.stdout


def test_check_speaks_to_programs(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Tol\n", encoding="utf-8")

    problems = json.loads(run("check", str(tmp_path), "--output", "json").stdout)

    assert [found["code"] for found in problems] == ["file-missing", "file-missing", "no-gateway", "unknown-kind"]


def test_check_of_a_right_folder_is_green() -> None:
    answer = run("check", str(SMALL), "--strict", "--on", "2026-11-16")

    assert answer.returncode == 0
    assert re.fullmatch(r"19 documents, no problems, revision [0-9a-f]{12}\n", answer.stdout)


def test_warnings_count_when_strict() -> None:
    """A review that is overdue on that day, but not yet by twice its period."""
    assert run("check", str(SMALL), "--on", "2027-05-01").returncode == 0
    assert run("check", str(SMALL), "--on", "2027-05-01", "--strict").returncode == 1


def test_check_without_policies_reports_it(tmp_path: Path) -> None:
    shutil.copytree(SMALL / "configs", tmp_path / "configs")

    answer = run("check", str(tmp_path), "--on", "2026-11-16")

    assert answer.returncode == 1
    assert "policies/policy.csv:1:1: file-missing: there is no file policy.csv" in answer.stdout


def test_warnings_leave_the_revision_in_the_last_line() -> None:
    answer = run("check", str(SMALL), "--on", "2027-05-01")

    assert re.fullmatch(r"19 documents, 1 warning, revision [0-9a-f]{12}", answer.stdout.splitlines()[-1])


def test_folder_that_is_not_there_is_one_line_and_exit_code_two(tmp_path: Path) -> None:
    answer = run("check", str(tmp_path / "nowhere"))

    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"error: there is no folder {tmp_path}/nowhere")
    assert answer.stderr.count("\n") == 1


def test_file_in_place_of_a_folder_is_a_diagnostic(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Tool\n", encoding="utf-8")

    answer = run("check", str(tmp_path / "a.yaml"))

    assert answer.returncode == 1
    assert "not-a-folder" in answer.stdout


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"])
def test_pipe_gets_plain_lines_of_any_length(tmp_path: Path, variable: str) -> None:
    name = "x" * 300
    (tmp_path / "a.yaml").write_text(f"kind: Tool\nmetadata: {{name: a, owner: b}}\n{name}: 1\n", encoding="utf-8")

    answer = run("check", str(tmp_path), **{variable: "1", "COLUMNS": "40"})

    assert "\x1b" not in answer.stdout
    assert any(line.startswith(f"{tmp_path}/a.yaml:3:1: unknown-field:") for line in answer.stdout.splitlines())


def test_terminal_gets_colours_and_a_summary() -> None:
    shown = in_terminal("check", str(SMALL), "--on", "2026-11-16", NO_COLOR="")

    assert "\x1b[1;32m✓ " in shown
    words = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "documents   19: ArtifactClass 1, Catalogue 1," in words
    assert "catalogues  desk 2 " in words
    assert re.search(r"✓ no problems in [0-9.]+ s\n", words)


def test_terminal_shows_the_words_of_a_pipe_in_colour(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Tol\n", encoding="utf-8")

    shown = in_terminal("check", str(tmp_path), COLUMNS="200", NO_COLOR="")

    assert "\x1b[1;31munknown-kind\x1b[0m" in shown
    plain = run("check", str(tmp_path)).stdout
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).split("✗")[0] == "".join(plain.splitlines(keepends=True)[:-1])


def test_terminal_without_colours_gets_no_escapes() -> None:
    assert "\x1b" not in in_terminal("check", str(SMALL), NO_COLOR="1")
    assert "\x1b" not in in_terminal("check", str(SMALL), TERM="dumb", NO_COLOR="")


def test_text_of_users_is_no_markup_and_no_command(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text('kind: "[bold]:smile:\\e[31m"\n', encoding="utf-8")

    answer = run("check", str(tmp_path))

    assert "there is no kind '[bold]:smile:" in answer.stdout
    assert "\x1b" not in in_terminal("check", str(tmp_path), NO_COLOR="1")


def test_output_that_the_locale_cannot_write_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: Tölle\n", encoding="utf-8")

    answer = run("check", str(tmp_path), PYTHONIOENCODING="ascii")

    assert answer.returncode == 1
    assert "there is no kind 'T\\xf6lle'" in answer.stdout
