"""`gateway env`, run as a user runs it."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.gateways.commands import run_gateway

TOOL = """\
apiVersion: gateway/v1
kind: Tool
metadata: {name: ticket_get, owner: team-a}
spec:
  version: 1.0.0
  description: Reads a ticket.
  trust: {tier: internal, flags: []}
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
  trust: {tier: internal, flags: []}
  backend: {type: command, argv: [/bin/true], env: {TOKEN: {fromEnv: A_SECRET}, PLAIN: text}}
"""


def run(folder: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_gateway("env", str(folder), *args, env={**os.environ, "SET_ONE": "http://hunter2", **environ})


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
    assert answer.stderr == "note: the configuration has errors; run gateway check to see them\n"


def test_required_variables_without_a_default_must_be_set(tmp_path: Path) -> None:
    missing = run(written(tmp_path), "--require")

    assert missing.returncode == 1
    assert missing.stderr.splitlines()[-1] == "note: not set: A_SECRET, UNSET, password.txt"

    (tmp_path / "password.txt").write_text("x", encoding="utf-8")
    assert run(tmp_path, "--require", UNSET="a", A_SECRET="b").returncode == 0


OVERLAYS = """\
apiVersion: gateway/v1
kind: Gateway
metadata: {name: acme, owner: team-a}
spec:
  identity: [people]
  storage: main
---
apiVersion: gateway/v1
kind: IdentityProvider
metadata: {name: people, owner: team-a}
spec: {type: token, tokens: [{subject: "user:ana", sha256: {fromEnv: PEOPLE_KEY}, expires: "2999-12-31"}]}
---
apiVersion: gateway/v1
kind: IdentityProvider
metadata: {name: robots, owner: team-a}
spec: {type: token, tokens: [{subject: "agent:bot", sha256: {fromEnv: ROBOTS_KEY}, expires: "2999-12-31"}]}
---
apiVersion: gateway/v1
kind: Storage
metadata: {name: main, owner: team-a}
spec: {type: postgres, connection: {fromEnv: BASE_DATABASE}, blobs: {type: files, path: data}}
---
apiVersion: gateway/v1
kind: Tool
metadata: {name: later, owner: team-a}
spec: {lifecycle: draft, backend: {type: command, argv: [/bin/true], env: {TOKEN: {fromEnv: DRAFT_TOKEN}}}}
---
apiVersion: gateway/v1
kind: Overlay
metadata: {name: prod, owner: team-a}
spec:
  environment: prod
  patches:
    - target: {kind: Gateway, name: acme}
      merge: {identity: robots, audit: {key: {fromEnv: AUDIT_KEY}}}
    - target: {kind: Storage, name: main}
      merge: {connection: {fromEnv: PROD_DATABASE}}
---
apiVersion: gateway/v1
kind: Overlay
metadata: {name: dev, owner: team-a}
spec:
  environment: dev
  patches:
    - target: {kind: Tool, name: later}
      merge: {lifecycle: active, note: "${ONLY_IN_DEV}"}
"""


@pytest.mark.parametrize(
    ("args", "secrets"),
    [
        pytest.param([], ["BASE_DATABASE", "PEOPLE_KEY"], id="none"),
        pytest.param(["--environment", "prod"], ["AUDIT_KEY", "PROD_DATABASE", "ROBOTS_KEY"], id="prod"),
        pytest.param(["--environment", "dev"], ["BASE_DATABASE", "DRAFT_TOKEN", "PEOPLE_KEY"], id="dev"),
    ],
)
def test_secrets_are_those_that_the_environment_uses(tmp_path: Path, args: list[str], secrets: list[str]) -> None:
    (tmp_path / "a.yaml").write_text(OVERLAYS, encoding="utf-8")

    answer = run(tmp_path, "--require", *args, ONLY_IN_DEV="x")

    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1] == f"note: not set: {', '.join(secrets)}"
    assert run(tmp_path, "--require", *args, ONLY_IN_DEV="x", **dict.fromkeys(secrets, "x")).returncode == 0


def test_variables_of_every_overlay_are_demanded_because_no_start_goes_without_them(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(OVERLAYS, encoding="utf-8")
    (tmp_path / "policies").mkdir()

    answer = run(tmp_path, "--require", "--environment", "prod", AUDIT_KEY="x", PROD_DATABASE="x", ROBOTS_KEY="x")
    checked = run_gateway("check", str(tmp_path), "--environment", "prod")

    assert answer.stderr.splitlines()[-1] == "note: not set: ONLY_IN_DEV"
    assert "env-missing: environment variable ONLY_IN_DEV is not set" in checked.stdout + checked.stderr


def test_name_of_a_secret_that_comes_from_a_variable_is_shown_as_written(tmp_path: Path) -> None:
    text = TOOL.replace("fromEnv: A_SECRET", 'fromEnv: "${WHICH}_SECRET"')
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")

    rows = json.loads(run(tmp_path, "--output", "json", WHICH="hunter5", hunter5_SECRET="x").stdout)

    assert [row["state"] for row in rows if row["name"] == "${WHICH}_SECRET"] == ["set"]
    assert "hunter" not in json.dumps(rows)
