"""`gateway replay` and `plan --replay` on calls that a gateway recorded, from its store and from an exported log."""

import asyncio
import gzip
import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.project.plan import app as plan_app
from gateway.cli.project.replay import app
from gateway.model.caller import Credential, Principal
from tests.review.replay.every_rule import NOBODY_ASKS, PACKAGE, PEOPLE, POLICY, serving, write_every_rule
from tests.support.gateways.projects import environ_of

ANA = Principal("user:ana", frozenset({"role:agent"}), credential=Credential("token", "tests", "one"))
EVE = Principal("user:eve", frozenset({"role:agent"}), credential=Credential("token", "tests", "two"))
BIG = {"text": "a", "amount": 501}


@dataclass(frozen=True)
class Recorded:
    """A project, its data, and the log of its gateway."""

    folder: Path
    project: Path
    data: Path
    log: Path

    @property
    def environ(self) -> dict[str, str]:
        known = {**environ_of(PEOPLE), "GATEWAY_PYTHON_PACKAGES": PACKAGE, "GATEWAY_DATA_DIR": str(self.data)}
        return {**os.environ, **known}


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(recorded: Recorded, *args: object, app: Any = app) -> Answer:
    result = CliRunner().invoke(app, [str(each) for each in args], env=recorded.environ)
    return Answer(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("recorded")
    found = Recorded(folder, folder / "p", folder / "data", folder / "log.jsonl")
    write_every_rule(found.project)
    asyncio.run(make_calls(found))
    export: list[Any] = [sys.executable, "-m", "gateway", "audit", "export", "--database", found.data / "gateway.db"]
    found.log.write_bytes(subprocess.run(export, check=True, capture_output=True).stdout)
    return found


async def make_calls(recorded: Recorded) -> None:
    """Make 12 calls of Ana and one of Eve: 9 run, one is denied by a rule, two by a row, one is held."""
    async with serving(recorded.project, recorded.data) as callers:
        service = callers.app.service
        made: Sequence[tuple[Principal, str, dict[str, Any]]] = [
            *((ANA, "plain", {"text": str(number)}) for number in range(6)),
            (ANA, "small_amounts", {"text": "a"}),
            (ANA, "small_amounts", BIG),
            (ANA, "denied", {"text": "a"}),
            (ANA, "denied", {"text": "b"}),
            (ANA, "approved", {"text": "a"}),
            (ANA, "fetch", {"text": "a"}),
            (EVE, "plain", {"text": "a"}),
        ]
        for principal, tool, arguments in made:
            await service.call_tool(principal, "desk", tool, arguments, holding=NOBODY_ASKS)


def change(recorded: Recorded, folder: Path, **changes: Any) -> Path:
    return write_every_rule(folder / "changed", **changes)


def test_present_policy_differs_in_nothing(recorded: Recorded) -> None:
    answer = run(recorded, recorded.project)

    assert answer.code == 0, answer.out + answer.err
    assert answer.out.startswith("All 12 calls would be decided the same. 1 of 13 calls was not replayable.")
    assert "arguments, and they were not stored" in answer.out


def test_candidate_is_replayed_on_the_records_of_the_project(recorded: Recorded, tmp_path: Path) -> None:
    stricter = POLICY + "p, role:agent, *, tool:plain, invoke, community, deny\n"
    candidate = change(recorded, tmp_path, policy=stricter)
    answer = run(recorded, recorded.project, "--candidate", candidate, "--output", "json")

    assert answer.code == 2, answer.err
    [group] = answer.json["groups"]
    assert (group["change"], group["calls"], group["otherCallers"]) == ("allow-to-deny", 7, 0)
    assert group["callers"] == [{"name": "user:ana", "calls": 6}, {"name": "user:eve", "calls": 1}]
    assert group["after"] == {
        "decision": "deny",
        "by": "policy",
        "position": f"{candidate}/policies/policy.csv:{stricter.count(chr(10))}",
    }
    assert len(group["examples"]) == 3


def test_bundle_is_a_candidate(recorded: Recorded, tmp_path: Path) -> None:
    relaxed = POLICY.replace("p, role:agent, *, tool:denied, invoke", "p, role:lead, *, tool:denied, invoke")
    candidate = change(recorded, tmp_path, policy=relaxed)
    bundle = tmp_path / "candidate.bundle"
    build: list[Any] = [sys.executable, "-m", "gateway", "bundle", "build", bundle, "--project", candidate]
    subprocess.run(build, check=True, capture_output=True, env=recorded.environ)
    answer = run(recorded, recorded.project, "--candidate", bundle, "--output", "json")

    assert answer.code == 2, answer.err
    assert "signature of the bundle was not verified" in answer.err
    [group] = answer.json["groups"]
    assert (group["change"], group["calls"]) == ("deny-to-allow", 2)
    assert group["before"]["position"].endswith("policy.csv:3")


def test_folder_to_compare_with_replaces_the_record(recorded: Recorded, tmp_path: Path) -> None:
    older = change(recorded, tmp_path, small_amounts=None)
    answer = run(recorded, recorded.project, "--against", older, "--output", "json")

    assert answer.code == 0, answer.out
    assert answer.json["baseline"] not in ("recorded", answer.json["revision"])


def test_filters_choose_what_is_compared(recorded: Recorded) -> None:
    of_eve = run(recorded, recorded.project, "--caller", "user:eve", "--output", "json").json
    of_two = run(recorded, recorded.project, "--tool", "denied", "--tool", "fetch", "--output", "json").json
    none = run(recorded, recorded.project, "--since", "2999-01-01", "--output", "json").json

    assert (of_eve["calls"], of_two["calls"], none["calls"]) == (1, 3, 0)
    assert none["summary"] == "There are no recorded calls to replay."


@pytest.mark.parametrize("packed", [False, True])
def test_exported_log_is_replayed_without_arguments(recorded: Recorded, tmp_path: Path, packed: bool) -> None:
    log = tmp_path / "log"
    log.write_bytes(gzip.compress(recorded.log.read_bytes()) if packed else recorded.log.read_bytes())
    answer = run(recorded, recorded.project, "--from", log, "--output", "json")

    assert answer.code == 0, answer.out + answer.err
    assert (answer.json["calls"], answer.json["differing"]) == (13, 0)
    assert [(each["reason"], each["calls"]) for each in answer.json["unreplayed"]] == [("arguments", 2)]


def test_database_is_read_wherever_the_project_has_its_own(recorded: Recorded, tmp_path: Path) -> None:
    elsewhere = replace(recorded, data=tmp_path / "nothing")
    answer = run(elsewhere, recorded.project, "--from", recorded.data / "gateway.db", "--output", "json")

    assert (answer.code, answer.json["calls"]) == (0, 13)


HOSTILE = {
    "no entry": (b"{}\n", "line 1 is not an entry of a decision log"),
    "not JSON": (b"\xff\x00\n", "line 1 is not an entry of a decision log"),
    "a long line": (
        b'{"body":{' + b"x" * (1 << 20) + b"\n",
        "line 1 is not an entry of a decision log: it is too long",
    ),
    "a cut line": (b'{"body":{"at":1', "line 1 is not an entry of a decision log: it is cut off"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
def test_line_that_no_gateway_writes_is_refused_with_its_number(
    recorded: Recorded, tmp_path: Path, content: bytes, message: str
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(content)
    answer = run(recorded, recorded.project, "--from", log)

    assert (answer.code, answer.out) == (1, "")
    assert message in answer.err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"effect":"deny"', b'"effect":"pass"', "its decision is unknown"),
        (b'"subject":"user:eve"', b'"subject":["user:eve"]', "subject is not a text"),
        (b'"roles":["role:agent"]', b'"roles":{"a":1}', "roles is not a list of at most 1024 texts"),
        (b'"caller":{', b'"caller":[],"x":{', "caller is not an object"),
    ],
)
def test_entry_of_another_shape_is_refused_with_its_line(
    recorded: Recorded, tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    log = tmp_path / "log.jsonl"
    changed = recorded.log.read_bytes().replace(old, new)
    assert changed != recorded.log.read_bytes()
    log.write_bytes(changed)
    answer = run(recorded, recorded.project, "--from", log)

    assert (answer.code, answer.out) == (1, "")
    assert "line " in answer.err
    assert message in answer.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--since", "yesterday"), "write an age"),
        (("--from", "nowhere.jsonl"), "there is no file nowhere.jsonl"),
        (("--candidate", "nowhere"), "nowhere"),
        (("--candidate", "a", "--against", "b"), "exclude each other"),
        (("--connection-env", "NOT_SET"), "the environment variable NOT_SET is not set"),
    ],
)
def test_wrong_use_is_no_difference(recorded: Recorded, args: Sequence[str], message: str) -> None:
    answer = run(recorded, recorded.project, *args)

    assert answer.code == 1
    assert message in answer.err


def test_project_with_errors_is_not_replayed(recorded: Recorded, tmp_path: Path) -> None:
    broken = change(recorded, tmp_path)
    with (broken / "configs" / "all.yaml").open("a", encoding="utf-8") as file:
        file.write("\n---\nkind: Nothing\n")

    assert run(recorded, recorded.project, "--candidate", broken).code == 1


def test_plan_counts_replayed_calls_in_the_risk(recorded: Recorded, tmp_path: Path) -> None:
    older = change(recorded, tmp_path)  # the project before `plain` is allowed to agents
    policy = older / "policies" / "policy.csv"
    policy.write_text(POLICY + "p, role:agent, *, tool:plain, invoke, community, deny\n", encoding="utf-8")

    without = run(recorded, recorded.project, "--against", older, "--output", "json", app=plan_app).json
    answer = run(recorded, recorded.project, "--against", older, "--replay", "7d", "--output", "json", app=plan_app)

    assert answer.code == 2, answer.err
    assert without["replay"] is None
    assert answer.json["replay"]["differing"] == 7
    [found] = [each for each in answer.json["findings"] if each["code"] == "replay-passed"]
    assert found["weight"] == answer.json["risk"] == "high"
    shown = run(recorded, recorded.project, "--against", older, "--replay", "7d", app=plan_app).out
    assert "7 of 13 calls would be allowed, stopped before by the policy" in shown


def test_terminal_shows_progress_on_standard_error(recorded: Recorded) -> None:
    ours, theirs = pty.openpty()
    command: list[Any] = [sys.executable, "-m", "gateway", "replay", recorded.project]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=recorded.environ, check=False)
    os.close(theirs)
    shown = b""
    with suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:  # the end of a terminal is an error
        while piece := terminal.read(1 << 16):
            shown += piece

    assert ended.returncode == 0
    assert b"replaying calls" in shown
    assert b"replaying" not in ended.stdout


def test_help_has_examples(recorded: Recorded) -> None:
    answer = run(recorded, "--help")

    assert answer.code == 0
    assert "gateway replay --against main" in " ".join(answer.out.split())
