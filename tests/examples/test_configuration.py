"""The example project loads without a warning, its policy tests hold, and it demonstrates the intended features."""

import json
from datetime import date
from pathlib import Path

import pytest

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.config.field_docs import build_editor_schema
from gateway.config.kinds.gate_rules import GateRuleDocument
from gateway.config.kinds.tools import ToolDocument
from gateway.config.kinds.validation import KINDS
from gateway.policy.access import Access
from gateway.review.policy_tests import run_cases
from tests.support.paths import ROOT

TODAY = date(2026, 11, 16)
ENVIRONMENTS = (None, "desk", "dev", "prod")


def example(environment: str | None = None, *, today: date = TODAY) -> LoadedProject:
    return load_project(ProjectFolders.from_folder(ROOT), environ={}, today=today, environment=environment)


def access_to(found: LoadedProject) -> Access:
    assert found.access is not None, found.diagnostics
    return found.access


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("today", [TODAY, date(2028, 11, 16)], ids=["today", "in two years"])
def test_example_loads_without_a_word(environment: str | None, today: date) -> None:
    assert example(environment, today=today).diagnostics == ()


def test_revision_is_the_same_wherever_python_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = access_to(example()).snapshot.revision
    monkeypatch.setattr("sys.executable", "/opt/another/bin/python3")
    monkeypatch.setattr("sys.prefix", "/opt/another")
    monkeypatch.setattr("sys.base_prefix", "/opt/another")

    assert access_to(example()).snapshot.revision == here
    loaded = load_project(
        ProjectFolders.from_folder(ROOT), environ={"GATEWAY_PYTHON": "/opt/third/bin/python3"}, today=TODAY
    )
    assert access_to(loaded).snapshot.revision != here


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_policy_tests_of_the_example_hold(environment: str | None) -> None:
    access = access_to(example(environment))

    results = run_cases(access, access.snapshot.cases)

    assert [(result.case.name, result.failure) for result in results if not result.passed] == []
    assert len(results) >= 12


def test_example_has_a_document_of_every_kind() -> None:
    found = {each.source.data["kind"] for each in example().loaded.documents}

    assert found == set(KINDS)


def test_example_has_every_backend_and_every_check() -> None:
    documents = [each.spec for each in example().loaded.documents]
    backends = {each.spec.backend.type for each in documents if isinstance(each, ToolDocument)}
    checks = {each.spec.check.type for each in documents if isinstance(each, GateRuleDocument)}

    assert backends == {"http", "python", "command", "mcp", "openapi"}
    assert checks == {"approval", "permission", "rate", "quota", "window", "arguments", "loop", "budget"}


def test_editor_schema_is_the_one_the_gateway_writes() -> None:
    written = json.loads((ROOT / "configs" / ".schema" / "gateway.v1.json").read_text(encoding="utf-8"))

    assert written == build_editor_schema(), "run: gateway schema --write configs/.schema/gateway.v1.json"


@pytest.mark.parametrize(
    "file", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda file: file.relative_to(ROOT).as_posix()
)
def test_every_file_names_the_editor_schema_by_a_path_that_leads_there(file: Path) -> None:
    first = file.read_text(encoding="utf-8").splitlines()[0]
    prefix = "# yaml-language-server: $schema="

    assert first.startswith(prefix)
    assert (file.parent / first.removeprefix(prefix)).resolve() == ROOT / "configs" / ".schema" / "gateway.v1.json"
