"""`gateway lock` and `gateway drift`, run as a user runs them, with the example's wiki as the upstream."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gateway.config.kinds.validation import validate_document
from gateway.config.lock.lock_file import read_lock
from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT

LOCKED = (ROOT / "configs" / "gateway.lock").read_text(encoding="utf-8")
DOCUMENT = (ROOT / "docs" / "lock.md").read_text(encoding="utf-8")


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = {"PATH": os.environ["PATH"], "GATEWAY_PYTHON": sys.executable}
    return run_gateway(*arguments, cwd=folder, env=environ)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("configs", "policies"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def lock_of(project: Path) -> Path:
    return project / "configs" / "gateway.lock"


def test_example_is_locked_as_its_server_is(project: Path) -> None:
    checked, drifted = run(project, "lock", "--check"), run(project, "drift")

    assert (checked.returncode, checked.stdout) == (0, "✓ configs/gateway.lock matches the upstreams\n")
    assert (drifted.returncode, drifted.stdout) == (0, "0 changes of upstreams: freight, wiki\n")


def test_lock_is_written_anew_byte_for_byte(project: Path) -> None:
    lock_of(project).unlink()

    first, again = run(project, "lock"), run(project, "lock")

    assert first.returncode == 0, first.stderr
    assert "configs/gateway.lock is written: 4 definitions, upstreams: freight, wiki" in first.stdout
    assert "configs/gateway.lock is unchanged" in again.stdout
    assert lock_of(project).read_text(encoding="utf-8") == LOCKED
    assert [each.name for each in lock_of(project).parent.iterdir() if "lock" in each.name] == ["gateway.lock"]


def test_confirmation_is_a_new_lock_of_the_same_definitions(project: Path) -> None:
    confirmed, checked, again = (
        run(project, "lock", "-u", "wiki", "--confirm"),
        run(project, "lock", "--check"),
        run(project, "lock"),
    )
    text = lock_of(project).read_text(encoding="utf-8")

    assert "configs/gateway.lock is written: 4 definitions" in confirmed.stdout
    assert (checked.returncode, "is unchanged" in again.stdout) == (0, True)
    assert re.findall(r"\nconfirmed: .*\n", text) != []
    assert re.sub(r"\nconfirmed: .*\n", "\n", text) == LOCKED
    assert run(project, "check").returncode == 0


def test_check_confirms_nothing(project: Path) -> None:
    found = run(project, "lock", "--check", "--confirm")

    assert (found.returncode, lock_of(project).read_text(encoding="utf-8")) == (2, LOCKED)
    assert "--check and --confirm cannot be combined" in found.stderr


def test_confirmation_that_is_no_text_is_reported(project: Path) -> None:
    lock_of(project).write_text(LOCKED.replace("server:\n", "confirmed: 5\nserver:\n", 1), encoding="utf-8")

    found = run(project, "check")

    assert found.returncode == 1
    assert "bad-lock: confirmed must be a text" in found.stdout + found.stderr


def older(project: Path) -> None:
    """A lock from before the server changed, written by hand with a matching digest."""
    found, _ = read_lock(project / "configs")
    from gateway.config.lock.lock_file import render_lock
    from gateway.registries.imported_definition import UpstreamDefinition

    definitions = [
        UpstreamDefinition.read("wiki", {**each.given, "description": "Finds pages."})
        for each in found.definitions
        if each.name == "search_pages"
    ]
    lock_of(project).write_text(
        render_lock(found.with_upstream(found.upstreams["wiki"], definitions)), encoding="utf-8"
    )


def test_drift_shows_what_changed_and_check_shows_the_difference(project: Path) -> None:
    older(project)

    text, data, checked = (
        run(project, "drift"),
        run(project, "drift", "--output", "json"),
        run(project, "lock", "--check"),
    )

    assert text.returncode == data.returncode == 2
    assert "tool wiki.read_page\n  !  it is new and is not served until it is locked" in text.stdout
    assert "- Finds pages.\n       + Finds pages of the wiki that contain a text." in text.stdout
    assert [each["what"] for each in json.loads(data.stdout)["changes"]] == ["added", "description-changed"]
    assert checked.returncode == 1
    assert (
        '-  description: "Finds pages."\n+  description: "Finds pages of the wiki that contain a text."'
        in checked.stdout
    )
    assert "configs/gateway.lock does not match the upstreams" in checked.stderr


def test_tampered_lock_is_an_error_until_it_is_written_anew(project: Path) -> None:
    lock_of(project).write_text(LOCKED.replace("Finds pages", "Finds all pages"), encoding="utf-8")

    before, mended, after = run(project, "check"), run(project, "lock"), run(project, "check")

    assert before.returncode == 1
    assert "lock-tampered" in before.stdout + before.stderr
    assert (mended.returncode, after.returncode) == (0, 0)


@pytest.mark.parametrize(
    ("edit", "arguments", "expected"),
    [
        (("", ""), ("lock", "-u", "wik"), "there is no upstream 'wik'; did you mean 'wiki'?"),
        (("gateway.examples.wiki_server]", "gateway.examples.none]"), ("lock",), "upstream wiki: "),
        (("search_pages, read_page]", "search_pages, 5]"), ("lock",), "wrong-type"),
    ],
    ids=["unknown", "dead", "wrong"],
)
def test_what_cannot_be_locked_is_reported_and_nothing_is_written(
    edit: tuple[str, str], arguments: tuple[str, ...], expected: str, project: Path
) -> None:
    path = project / "configs" / "upstreams" / "wiki.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace(*edit), encoding="utf-8")

    found = run(project, *arguments)

    assert found.returncode in (1, 2)
    assert expected in found.stderr
    assert "Traceback" not in found.stderr
    assert lock_of(project).read_text(encoding="utf-8") == LOCKED


def test_documents_of_the_page_have_the_right_shape() -> None:
    examples = [yaml.safe_load(each) for each in re.findall(r"```yaml\n(apiVersion.*?)```", DOCUMENT, re.DOTALL)]

    assert [validate_document(each)[1] for each in examples] == [[]]


def test_lock_of_the_page_is_that_of_the_example() -> None:
    [shown] = re.findall(r"```yaml\nversion: 1\n---\n(.*?)```", DOCUMENT, re.DOTALL)

    assert shown in LOCKED


def test_flags_are_proposed_for_tools_of_unknown_effects_and_applied_nowhere(project: Path) -> None:
    notes = project / "configs" / "upstreams" / "notes.yaml"
    notes.write_text(
        """\
apiVersion: gateway/v1
kind: Upstream
metadata: {name: notes, owner: team-devex}
spec:
  transport:
    type: stdio
    argv: ["${GATEWAY_PYTHON:-/usr/bin/python3}", -m, gateway.examples.wiki_server]
    sandbox:
      readable: ["${GATEWAY_PYTHON_PREFIX:-/usr}", "${GATEWAY_PYTHON_BASE:-/usr}", "${GATEWAY_PACKAGES:-/usr}"]
  import: {include: ["*"], trust: {tier: internal}}
""",
        encoding="utf-8",
    )
    before = notes.read_text(encoding="utf-8")

    locked = run(project, "lock", "-u", "notes")
    checked = run(project, "check", "--strict")
    block = locked.stdout.partition("tools:\n")[2].partition("\n\n")[0]
    proposed = yaml.safe_load(f"tools:\n{block}\n")

    assert locked.returncode == 0, locked.stderr
    assert "# It is not reviewed." in locked.stdout
    assert proposed["tools"]["read_page"] == {"flags": []}
    assert notes.read_text(encoding="utf-8") == before
    assert (checked.returncode, "effects-undeclared" in checked.stdout + checked.stderr) == (1, True)

    indented = "\n".join(f"  {line}" for line in block.splitlines())
    notes.write_text(
        before.replace(
            '  import: {include: ["*"], trust: {tier: internal}}',
            '  import:\n    include: ["*"]\n    trust: {tier: internal}\n    tools:\n' + indented,
        ),
        encoding="utf-8",
    )
    assert "effects-undeclared" not in (again := run(project, "check", "--strict")).stdout + again.stderr
    assert "It is not reviewed" not in run(project, "lock", "-u", "notes").stdout
