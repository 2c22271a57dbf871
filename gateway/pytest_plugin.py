"""Policy tests as pytest items: `pytest -p gateway.pytest_plugin policies` runs each case of each PolicyTest document.

The project is the folder that has `configs` beside `policies`. Without `-p`, pytest collects none of the cases.
"""

import os
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.app import ProjectFolders, load_project
from gateway.config import list_files, render_report
from gateway.policy import Access
from gateway.registries import PolicyCase
from gateway.review import CaseResult, run_cases

_ENVIRONMENT: Final = "GATEWAY_ENVIRONMENT"
_KIND: Final = b"PolicyTest"
_PROJECTS: Final = pytest.StashKey[dict[Path, Access | str]]()


class PolicyCaseFailure(Exception):
    """A policy case had another result than expected."""

    def __init__(self, result: CaseResult) -> None:
        super().__init__(f"expected {result.expected}, got {result.got}")
        self.result = result


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gateway", "policy tests")
    group.addoption("--gateway-on", metavar="DAY", type=_day, help="evaluate as of this day: 2026-11-16 [today]")
    group.addoption("--gateway-environment", metavar="NAME", help=f"apply this environment's overlay [{_ENVIRONMENT}]")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "PolicyTestFile | None":
    if file_path.suffix not in (".yaml", ".yml"):
        return None
    folder = _project_of(file_path)
    if folder is None or _KIND not in file_path.read_bytes():
        return None
    found: PolicyTestFile = PolicyTestFile.from_parent(parent, path=file_path, folder=folder)
    return found


class PolicyTestFile(pytest.File):
    """The cases of one file; a project with errors raises `CollectError`."""

    def __init__(self, *, folder: Path, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._folder = folder

    def collect(self) -> Iterator["PolicyTestItem"]:
        projects = self.config.stash.setdefault(_PROJECTS, {})
        if self._folder not in projects:
            projects[self._folder] = _access_to(self._folder, self.config)
        access = projects[self._folder]
        if isinstance(access, str):
            raise self.CollectError(access)
        for case in access.snapshot.cases:
            if Path(case.position.file).resolve() == self.path.resolve():
                yield PolicyTestItem.from_parent(self, name=f"{case.suite}: {case.name}", access=access, case=case)


class PolicyTestItem(pytest.Item):
    """One case."""

    def __init__(self, *, access: Access, case: PolicyCase, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._access = access
        self._case = case

    def runtest(self) -> None:
        [result] = run_cases(self._access, [self._case])
        if not result.passed:
            raise PolicyCaseFailure(result)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if not isinstance(excinfo.value, PolicyCaseFailure):
            return super().repr_failure(excinfo, style)
        position = self._case.position
        lines = (f"    {line}" for line in excinfo.value.result.failure)
        return "\n".join((f"{position.file}:{position.line}: {excinfo.value}", *lines))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._case.position.line - 1, self.name


def _day(text: str) -> date:
    return date.fromisoformat(text)


def _project_of(file: Path) -> Path | None:
    """Return the nearest parent folder that has `configs` and whose `policies` contain the file."""
    above = (folder.parent for folder in file.parents if folder.name == "policies")
    return next((folder for folder in above if (folder / "configs").is_dir()), None)


def _access_to(folder: Path, config: pytest.Config) -> Access | str:
    """Return the project's access, or a report of its errors."""
    here = Path.cwd()
    project = ProjectFolders.from_folder(folder.relative_to(here) if folder.is_relative_to(here) else folder)
    found = load_project(
        project,
        environ=os.environ,
        today=config.getoption("--gateway-on") or datetime.now(UTC).date(),
        environment=config.getoption("--gateway-environment") or os.environ.get(_ENVIRONMENT),
    )
    if found.access is not None:
        return found.access
    texts = [list_files(each, prefix=each.as_posix()) for each in (project.configs, project.policies)]
    errors = [each for each in found.diagnostics if each.is_error]
    return render_report(
        errors, sources=lambda file: next((text for of in texts if (text := of(file)) is not None), None)
    )
