"""What a report is made from: the loaded project, its tests, the comparison with a revision, and lock files."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from gateway import __version__
from gateway.app import LoadedProject, ProjectFolders, list_attestations, read_project_files
from gateway.cli.output import fail, print_note
from gateway.cli.project.access import show_progress
from gateway.cli.project.plan_inputs import make_plan_input
from gateway.policy import forward_now
from gateway.review import (
    Dependency,
    DependencyList,
    ReportInput,
    list_ending_rows,
    list_policy_rows,
    list_testable_actions,
    measure_coverage,
    review_access,
    run_cases,
)

_MOST_DEPENDENCIES: Final = 32 << 20
_REQUIREMENT: Final = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)")
_HASH: Final = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_EPOCH: Final = "SOURCE_DATE_EPOCH"


def choose_day(day: date | None) -> date:
    """Return the day of the report: the named one, that of SOURCE_DATE_EPOCH, or today."""
    epoch = os.environ.get(_EPOCH)
    if day is not None or not epoch:
        return day or datetime.now(UTC).date()
    try:
        return datetime.fromtimestamp(int(epoch), UTC).date()
    except (ValueError, OverflowError, OSError):
        fail(f"{_EPOCH} is not a number of seconds: {epoch[:40]!r}", "unset it, or name the day: --on 2026-11-16")


def choose_moment(day: date | None) -> datetime:
    """Return the time as of which grants are shown: noon of a day that was named, or now."""
    if day is None and not os.environ.get(_EPOCH):
        return forward_now()
    return datetime.combine(choose_day(day), time(12), UTC)


def make_report_input(
    found: LoadedProject, project: ProjectFolders, *, day: date, environment: str | None, commit: str | None
) -> ReportInput:
    """Return the input with everything that the project itself says. `found` has no errors."""
    assert found.access is not None, "a valid project has one"  # noqa: S101 - `require_valid` checked it
    access = found.access
    naming = partial(_shown_name, project)
    results = run_cases(access, access.snapshot.cases)
    testable = list_testable_actions(access)
    rows = [row.position for row in found.policies.permissions if not testable.isdisjoint(row.actions.text.split("|"))]
    at = datetime.combine(day, time(12), UTC)
    with show_progress("asking the policy") as progress:
        review = review_access(access, list_policy_rows(found.policies, at), at=at, progress=progress)
    return ReportInput(
        project=make_plan_input(found, access, naming=naming, environment=environment),
        review=review,
        day=day,
        version=__version__,
        diagnostics=found.diagnostics,
        tests=results,
        coverage=measure_coverage(access, results, rows=rows),
        files=_hash_files(project),
        ending_rows=list_ending_rows(found.policies, at),
        attestations=list_attestations(found.loaded, environment=environment),
        environment=environment,
        commit=commit,
        naming=naming,
    )


def _shown_name(project: ProjectFolders, file: str) -> str:
    """Return a file's name below `configs` or `policies`, independent of where the project is."""
    for folder, name in ((project.configs, "configs"), (project.policies, "policies")):
        prefix = f"{folder.as_posix()}/"
        if file.startswith(prefix):
            return f"{name}/{file.removeprefix(prefix)}"
    return file


def _hash_files(project: ProjectFolders) -> dict[str, str]:
    contents = read_project_files({"configs": project.configs, "policies": project.policies})
    return {path: sha256(content).hexdigest() for path, content in contents.items()}


def read_dependencies(path: Path) -> DependencyList:
    """Read a lock file of pip with hashes, or a CycloneDX bill of materials. End the command if it is neither."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_DEPENDENCIES + 1)
    except OSError as error:
        fail(f"{path} cannot be read ({error.strerror})", "name a lock file or a CycloneDX file")
    if len(content) > _MOST_DEPENDENCIES:
        fail(f"{path} is too large", "name a lock file or a CycloneDX file")
    text = content.decode("utf-8", "replace")
    packages = list(_of_bill(text) if text.lstrip().startswith("{") else _of_lock(text))
    if not packages:
        fail(f"{path} lists no package with its version", "name a lock file with hashes, or a CycloneDX file")
    if not any(each.digests for each in packages):
        print_note(f"{path} pins no digest")
    packages.sort(key=lambda each: (each.name, each.version))
    return DependencyList(path.name, sha256(content).hexdigest(), tuple(packages))


def _of_lock(text: str) -> Iterator[Dependency]:
    for line in text.replace("\\\n", " ").splitlines():
        if found := _REQUIREMENT.match(line.strip()):
            yield Dependency(found["name"], found["version"], tuple(sorted(_HASH.findall(line))))


def _of_bill(text: str) -> Iterator[Dependency]:
    try:
        components = json.loads(text).get("components", [])
    except (ValueError, AttributeError, RecursionError):
        return
    for each in components if isinstance(components, list) else ():
        if isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("version"), str):
            yield Dependency(each["name"], each["version"], tuple(sorted(_component_digests(each))))


def _component_digests(component: dict[str, Any]) -> Iterable[str]:
    places = [component, *(each for each in component.get("externalReferences", ()) if isinstance(each, dict))]
    hashes = [each for place in places for each in place.get("hashes", ()) if isinstance(each, dict)]
    return {f"sha256:{each.get('content')}" for each in hashes if each.get("alg") == "SHA-256"}
