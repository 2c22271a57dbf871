"""From folders to a snapshot with its authoriser: what every command, and the server, start with.

Reading, linking and linting happen here and nowhere else, so what is checked is what is started.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Final

from gateway.access import Access
from gateway.authz.enforcer import CasbinAuthoriser
from gateway.authz.lint import KnownNames, lint
from gateway.authz.rules import Cell, Link, PolicySet, read_policies
from gateway.config.linker import link
from gateway.config.linking.people import people_in_use, people_of
from gateway.config.linking.python_objects import ALLOW_LIST
from gateway.config.linking.roles import ungranted_roles
from gateway.config.loader import Loaded, load
from gateway.config.lock_file import read_lock
from gateway.config.openapi_imports import file_imports
from gateway.config.pins import locked_imports
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.governance.approvers import approver_problems
from gateway.governance.catalogues import QUERY_PREFIX
from gateway.governance.diagnostics import Diagnostic, Position, in_order
from gateway.governance.imports import ImportedDefinition
from gateway.governance.locks import Lock
from gateway.snapshot import DeclaredTool, Snapshot, revision_of

INTERPRETER: Final = "GATEWAY_PYTHON"
_FOLDERS: Final = ("GATEWAY_PYTHON_PREFIX", "GATEWAY_PYTHON_BASE", "GATEWAY_PACKAGES")
GIVEN: Final = (INTERPRETER, *_FOLDERS)
"""What documents may use without its being set: the interpreter that runs the gateway, and the folders that a program
reads to run with it (its environment, its library, the packages of the gateway)."""


def _given() -> dict[str, str]:
    values = (sys.executable, sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
    return dict(zip(GIVEN, values, strict=True))


@dataclass(frozen=True, slots=True)
class Project:
    """Where the documents are and where the policies are."""

    configs: Path
    policies: Path

    @classmethod
    def at(cls, folder: Path, *, policies: Path | None = None) -> "Project":
        """A folder that holds `configs` and `policies`, or `configs` itself with `policies` beside it."""
        inside = folder / "configs"
        configs = inside if inside.is_dir() else folder
        beside = configs.parent if configs.name else Path("..")
        return cls(configs, policies or beside / "policies")


@dataclass(frozen=True, slots=True)
class Assembled:
    """What a project means on one day. `access` is `None` if there are errors."""

    access: Access | None
    loaded: Loaded
    policies: PolicySet
    diagnostics: tuple[Diagnostic, ...]
    lock: Lock = field(default_factory=Lock)
    imports: tuple[ImportedDefinition, ...] = ()
    """What upstreams bring, as far as it is known here."""

    @property
    def has_errors(self) -> bool:
        return any(found.is_error for found in self.diagnostics)


def assemble(
    project: Project,
    *,
    environ: Mapping[str, str],
    today: date,
    environment: str | None = None,
    imports: Collection[ImportedDefinition] | None = None,
    packages: Collection[str] | None = None,
) -> Assembled:
    """Everything a project declares, with every problem of its documents and its policies.

    `imports` is what upstreams bring; without it, what the lock file says they bring. `packages` are those that Python
    objects may come from; without it, the environment says which.
    """
    folders = [
        folder for folder in (project.configs, project.policies) if folder == project.configs or _has_tests(folder)
    ]
    loaded = load(folders, environ={**_given(), **environ}, environment=environment)
    lock, of_lock = read_lock(project.configs)
    is_whole = not any(found.is_error for found in of_lock)
    locked, idle = locked_imports(loaded, lock, environment=environment, is_whole=is_whole)
    read = file_imports(loaded, project.configs, locked=lock.upstreams)
    allowed = _packages(environ) if packages is None else packages
    known = [*locked, *read.definitions] if imports is None else imports
    linked = link(loaded, today=today, packages=allowed, imports=known)
    policies, of_files = read_policies(project.policies)
    names = _conceivable(loaded, linked.snapshot, policies, known)
    of_imports = [*of_lock, *idle, *read.diagnostics]
    of_policies = [*of_files, *lint(policies, names)]
    diagnostics = in_order([*linked.diagnostics, *of_imports, *of_policies, *_ungranted(loaded, policies, of_policies)])
    if linked.snapshot is None or any(found.is_error for found in diagnostics):
        return Assembled(None, loaded, policies, tuple(diagnostics), lock, tuple(known))
    diagnostics = in_order([*diagnostics, *_unapproved(linked.snapshot, policies, today)])
    # folders of one Python may be one or several: they are one name, so that the revision is the same everywhere
    aliases = {
        value: f"${{{INTERPRETER if name == INTERPRETER else _FOLDERS[0]}}}"
        for name, value in _given().items()
        if name not in environ
    }
    access = _access(linked.snapshot, policies, lock, aliases=aliases)
    return Assembled(access, loaded, policies, tuple(diagnostics), lock, tuple(known))


def _ungranted(loaded: Loaded, policies: PolicySet, problems: Iterable[Diagnostic]) -> Iterable[Diagnostic]:
    """Roles that nothing grants. With an error in a document or a row, the grant may be there."""
    if loaded.has_errors or any(found.is_error for found in problems):
        return ()
    links = [cell.text for link in policies.members for cell in (link.member, link.group)]
    return ungranted_roles(loaded, [*links, *(row.subject.text for row in policies.permissions)])


def _unapproved(snapshot: Snapshot, policies: PolicySet, today: date) -> Iterable[Diagnostic]:
    """Approval rules that nobody could satisfy, whichever providers are in use, or nobody whom those in use let in.

    With an error anywhere that could follow from it.
    """
    links = [(link.member.text, link.group.text) for link in policies.members]
    everybody = [people_of(snapshot, links), people_in_use(snapshot, links, today=today)]
    found: dict[Position, Diagnostic] = {}
    for people in filter(None, everybody):
        for problem in approver_problems(snapshot.gates.values(), people):
            found.setdefault(problem.position, problem)
    return found.values()


def _access(snapshot: Snapshot, policies: PolicySet, lock: Lock, *, aliases: Mapping[str, str]) -> Access:
    """Names that nobody declared are denied; each tool belongs to the class of the artifacts it yields."""
    implied = [_membership(tool) for tool in snapshot.tools.values() if tool.artifact in snapshot.artifacts]
    complete = replace(policies, objects=(*policies.objects, *implied))
    known = KnownNames(
        tools=frozenset(snapshot.tools) | snapshot.query_names,
        classes=_classes(snapshot.artifacts, policies),
        catalogues=frozenset(snapshot.catalogues),
        tiers=snapshot.ranks,
        prompts=_offered(snapshot, "prompt"),
        resources=_offered(snapshot, "resource"),
    )
    authoriser = CasbinAuthoriser(complete, ranks=snapshot.ranks, known=known)
    confirmed = [("lock", each.name, each.confirmed) for each in lock.upstreams.values() if each.confirmed]
    revision = revision_of(snapshot, [*_rows(policies), *confirmed], aliases=aliases)
    return Access(replace(snapshot, revision=revision), authoriser)


def _membership(tool: DeclaredTool) -> Link:
    return Link(Cell(tool.object, tool.position), Cell(f"class:{tool.artifact}", tool.position))


def _conceivable(
    loaded: Loaded, snapshot: Snapshot | None, policies: PolicySet, imports: Iterable[ImportedDefinition]
) -> KnownNames:
    """What rows may speak of. Tools that an upstream may bring count, too, as far as its import names them."""
    names = loaded.names
    upstreams = [each.spec for each in loaded.documents if isinstance(each.spec, UpstreamDocument)]
    brought = {
        f"{upstream.metadata.name}.{pattern.replace('*', '')}"
        for upstream in upstreams
        for pattern in upstream.spec.import_.include
    }
    prompts = {
        f"{upstream.metadata.name}.{pattern.replace('*', '')}"
        for upstream in upstreams
        for pattern in upstream.spec.import_.prompts
    }
    groups = {f"{each.metadata.name}.{group.name}" for each in upstreams for group in each.spec.import_.resources}
    imported = {kind: {each.identity for each in imports if each.kind == kind} for kind in ("tool", "prompt")}
    served = frozenset(snapshot.tools) if snapshot else frozenset(imported["tool"])
    queries = snapshot.query_names if snapshot else _queries_named(policies)
    offered = _offered(snapshot, "prompt") if snapshot else frozenset(imported["prompt"])
    return KnownNames(
        tools=names.get("Tool", frozenset()) | served | brought | queries,
        classes=_classes(names.get("ArtifactClass", ()), policies),
        catalogues=names.get("Catalogue", frozenset()),
        tiers=snapshot.ranks if snapshot else None,
        roles=snapshot.roles if snapshot else None,
        prompts=frozenset(prompts) | offered,
        resources=frozenset(groups),
    )


def _queries_named(policies: PolicySet) -> frozenset[str]:
    """Query tools that rows speak of: without a snapshot nobody knows which there are."""
    objects = (row.object.text.removeprefix("tool:").replace("*", "") for row in policies.permissions)
    return frozenset(name for name in objects if name.startswith(QUERY_PREFIX))


def _offered(snapshot: Snapshot, kind: str) -> frozenset[str]:
    return frozenset(each.name for each in snapshot.offers.values() if each.kind == kind)


def _classes(artifacts: Iterable[str], policies: PolicySet) -> frozenset[str]:
    """Artifact classes, and groups that `g2` rows make."""
    return frozenset(artifacts) | {link.group.text.removeprefix("class:") for link in policies.objects}


def _rows(policies: PolicySet) -> Iterable[tuple[str, ...]]:
    for permission in policies.permissions:
        yield ("p", *permission.texts)
    for section, links in (("g", policies.members), ("g2", policies.objects)):
        yield from ((section, link.member.text, link.group.text) for link in links)


def _packages(environ: Mapping[str, str]) -> list[str]:
    return environ.get(ALLOW_LIST, "").replace(",", " ").split()


def _has_tests(folder: Path) -> bool:
    return any(folder.rglob("*.y*ml")) if folder.is_dir() else False
