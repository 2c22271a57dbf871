"""`gateway env`, run as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

TOOL = """\
apiVersion: gateway/v1
kind: Tool
metadata: {name: ticket_get, owner: team-a}
spec:
  version: 1.0.0
  description: Reads a ticket.
  trust: {tier: internal}
  backend:
    type: http
    method: GET
    url: "${SET_ONE}/${UNSET}/${OTHER:-x}"
    auth: {scheme: basic, username: me, password: {fromFile: password.txt}}
---
apiVersion: gateway/v1
kind: Tool
metadata: {name: note_add, owner: team-a}
spec:
  version: 1.0.0
  description: Adds a note.
  trust: {tier: internal}
  backend: {type: command, argv: [/bin/true], env: {TOKEN: {fromEnv: A_SECRET}, PLAIN: text}}
"""


def run(folder: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", "env", str(folder), *args],
        env={**os.environ, "SET_ONE": "http://hunter2", **environ},
        capture_output=True,
        text=True,
    )


def written(folder: Path) -> Path:
    (folder / "a.yaml").write_text(TOOL, encoding="utf-8")
    return folder


def test_variables_and_secrets_are_listed_and_never_their_values(tmp_path: Path) -> None:
    (tmp_path / "password.txt").write_text("hunter3", encoding="utf-8")

    answer = run(written(tmp_path), A_SECRET="hunter4")

    lines = [line.split() for line in answer.stdout.splitlines()]
    assert lines == [
        ["name", "state", "kind", "where"],
        ["A_SECRET", "set", "secret", f"{tmp_path}/a.yaml:21"],
        ["OTHER", "default", "value", f"{tmp_path}/a.yaml:11"],
        ["SET_ONE", "set", "value", f"{tmp_path}/a.yaml:11"],
        ["UNSET", "not", "set", "value", f"{tmp_path}/a.yaml:11"],
        ["password.txt", "set", "secret", "file", f"{tmp_path}/a.yaml:12"],
    ]
    assert "hunter" not in answer.stdout + answer.stderr


def test_programs_get_json(tmp_path: Path) -> None:
    rows = json.loads(run(written(tmp_path), "--output", "json").stdout)

    assert rows[0] == {"name": "A_SECRET", "state": "not set", "kind": "secret", "where": f"{tmp_path}/a.yaml:21"}


def test_errors_of_the_configuration_are_mentioned(tmp_path: Path) -> None:
    answer = run(written(tmp_path))

    assert answer.returncode == 0
    assert answer.stderr == "note: the configuration has errors; gateway check shows them\n"


def test_required_variables_without_a_default_must_be_set(tmp_path: Path) -> None:
    missing = run(written(tmp_path), "--require")

    assert missing.returncode == 1
    assert missing.stderr.splitlines()[-1] == "note: not set: A_SECRET, UNSET, password.txt"

    (tmp_path / "password.txt").write_text("x", encoding="utf-8")
    assert run(tmp_path, "--require", UNSET="a", A_SECRET="b").returncode == 0
