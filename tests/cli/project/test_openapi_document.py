"""`gateway check`, `tools` and `plan` on a project with an OpenAPI document, run as a user runs them."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
DAY = ("--on", "2026-11-16")
UPSTREAM = """
apiVersion: gateway/v1
kind: Upstream
metadata: {name: order, owner: team-orders}
spec:
  transport: {type: openapi, document: orders.openapi.yaml, server: "http://127.0.0.1:9002"}
  import: {include: ["*"], trust: {tier: internal, flags: []}}
"""
DOCUMENT = """
openapi: 3.1.0
info: {title: Orders, version: "1"}
paths:
  /orders:
    get:
      operationId: list
      summary: List orders
      parameters: [{name: limit, in: query, schema: {type: integer}}]
"""
DELETE = """
    delete: {operationId: drop_all, summary: Drop all orders}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    home = tmp_path / "new"
    shutil.copytree(SMALL, home)
    (home / "configs" / "orders.yaml").write_text(UPSTREAM)
    (home / "configs" / "orders.openapi.yaml").write_text(DOCUMENT)
    catalogues = home / "configs" / "catalogues.yaml"
    catalogues.write_text(catalogues.read_text().replace('"order_*"', '"order_*", "order.*"'))
    return home


def run(*args: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "NO_COLOR": "1", "GATEWAY_PYTHON_PACKAGES": "gateway.model", "COLUMNS": "200"}
    return run_gateway(*args, env=environ)


def test_project_with_a_document_is_checked(project: Path) -> None:
    checked = run("check", str(project), *DAY)

    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout


def test_broken_document_is_reported_at_its_upstream(project: Path) -> None:
    (project / "configs" / "orders.openapi.yaml").write_text("openapi: 1.2.3\n")

    checked = run("check", str(project), *DAY)

    assert checked.returncode != 0
    assert "orders.yaml:6:40: bad-openapi: the 'openapi' version is '1.2.3'" in checked.stdout + checked.stderr


def test_operations_are_listed_as_models_see_them(project: Path) -> None:
    listed = run("tools", "desk", "--project", str(project), *DAY, "--output", "json")

    assert listed.returncode == 0, listed.stderr
    found = {each["name"]: each for each in json.loads(listed.stdout)}
    assert (found["order_list"]["title"], found["order_list"]["backend"]) == ("List orders", "openapi order")


def test_plan_shows_the_operations_that_a_document_gains(project: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(project, old)
    document = project / "configs" / "orders.openapi.yaml"
    document.write_text(document.read_text().rstrip() + DELETE)

    planned = run("plan", str(project), "--against", str(old), *DAY)

    assert "order.drop_all" in planned.stdout, planned.stderr
