"""Policy tests collected by pytest."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest_plugins = ["pytester"]

SMALL = ROOT / "tests" / "projects" / "small"
PLUGIN = ("-p", "gateway.pytest_plugin", "-p", "no:cacheprovider", "--gateway-on", "2026-11-16")


@pytest.fixture
def project(pytester: pytest.Pytester) -> Path:
    shutil.copytree(SMALL, pytester.path, dirs_exist_ok=True)
    return pytester.path


def edit(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


@pytest.mark.usefixtures("project")
def test_each_case_is_an_item(pytester: pytest.Pytester) -> None:
    answer = pytester.runpytest_subprocess(*PLUGIN, "-v", "policies")

    answer.assert_outcomes(passed=4)
    answer.stdout.fnmatch_lines(["policies/tests/desk.yaml::desk: a clerk pays a small refund PASSED*"])


def test_failing_item_shows_the_lines_of_gateway_test(pytester: pytest.Pytester, project: Path) -> None:
    edit(project / "configs" / "gates.yaml", "> 500", "> 1000")

    answer = pytester.runpytest_subprocess(*PLUGIN, "policies")

    answer.assert_outcomes(passed=3, failed=1)
    answer.stdout.fnmatch_lines(
        [
            "policies/tests/desk.yaml:12: expected hold by gate large-refunds, got allow by role:clerk",
            "    gate large-refunds: args.amount > 1000 is false for amount 900   configs/gates.yaml:3",
        ]
    )
    assert "Traceback" not in answer.stdout.str()


def test_project_with_errors_cannot_be_collected(pytester: pytest.Pytester, project: Path) -> None:
    (project / "configs" / "more.yaml").write_text("kind: Tol\n", encoding="utf-8")

    answer = pytester.runpytest_subprocess(*PLUGIN, "policies")

    answer.assert_outcomes(errors=1)
    answer.stdout.fnmatch_lines(["configs/more.yaml:1:7: unknown-kind: there is no kind 'Tol'", "1 | kind: Tol"])


def test_other_files_are_left_alone(pytester: pytest.Pytester, project: Path) -> None:
    (project / "policies" / "notes.yaml").write_text("kind: Tool\n", encoding="utf-8")
    (project / "elsewhere.yaml").write_text("kind: PolicyTest\n", encoding="utf-8")
    lonely = project / "lonely" / "policies"
    lonely.mkdir(parents=True)
    (lonely / "a.yaml").write_text("kind: PolicyTest\n", encoding="utf-8")

    answer = pytester.runpytest_subprocess(*PLUGIN, "policies/notes.yaml", "elsewhere.yaml", "lonely")

    answer.assert_outcomes()


def test_project_may_be_elsewhere(pytester: pytest.Pytester) -> None:
    answer = pytester.runpytest_subprocess(*PLUGIN, str(SMALL / "policies"))

    answer.assert_outcomes(passed=4)


@pytest.mark.parametrize("environment", ["prod", "dev"])
def test_overlay_of_an_environment_is_applied(pytester: pytest.Pytester, project: Path, environment: str) -> None:
    (project / "configs" / "prod.yaml").write_text(
        """apiVersion: gateway/v1
kind: Overlay
metadata: {name: prod, owner: team-finance}
spec:
  environment: prod
  patches:
    - {target: {kind: GateRule, name: large-refunds}, merge: {mode: observe}}
""",
        encoding="utf-8",
    )

    answer = pytester.runpytest_subprocess(*PLUGIN, "--gateway-environment", environment, "policies")

    failed = int(environment == "prod")
    answer.assert_outcomes(passed=4 - failed, failed=failed)


def test_importing_the_package_imports_no_pytest() -> None:
    script = "import sys, gateway, gateway.app.project, gateway.cli.main; print('pytest' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
