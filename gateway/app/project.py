"""Load a project from its folders: a snapshot and its authoriser, or diagnostics.

The server and all commands load a project here, so that `gateway check` checks what `gateway serve` serves.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Final

from gateway.app.attestations import find_attestation_problems
from gateway.config import (
    ALLOWED_PACKAGES_VARIABLE,
    ConfigDocuments,
    GatewayDocument,
    GatewaySpec,
    IdentityProviderDocument,
    Lock,
    PostgresStorageSpec,
    SqliteStorageSpec,
    StorageDocument,
    TelemetryDocument,
    TelemetrySpec,
    UpstreamDocument,
    find_ungranted_roles,
    link_documents,
    load_documents,
    read_lock,
    read_openapi_files,
    resolve_pins,
)
from gateway.policy import (
    Access,
    KnownNames,
    PolicyCell,
    PolicySet,
    RoleLink,
    RowEnd,
    build_active_approver_directory,
    build_approver_directory,
    build_authoriser,
    check_approvers,
    find_ended_rows,
    lint_policies,
    read_policies,
)
from gateway.registries import (
    QUERY_PREFIX,
    DeclaredTool,
    Diagnostic,
    Position,
    Snapshot,
    UpstreamDefinition,
    compute_revision,
    sort_diagnostics,
)

PYTHON_EXECUTABLE: Final = "GATEWAY_PYTHON"
_FOLDERS: Final = ("GATEWAY_PYTHON_PREFIX", "GATEWAY_PYTHON_BASE", "GATEWAY_PACKAGES")
PYTHON_VARIABLES: Final = (PYTHON_EXECUTABLE, *_FOLDERS)
"""Variables that documents may use without setting them: the Python interpreter of the gateway, its environment, its
library, and the folder of the packages."""


def _python_variables() -> dict[str, str]:
    values = (sys.executable, sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
    return dict(zip(PYTHON_VARIABLES, values, strict=True))


@dataclass(frozen=True, slots=True)
class ProjectFolders:
    """The folders of documents and of policies."""

    configs: Path
    policies: Path

    @classmethod
    def from_folder(cls, folder: Path, *, policies: Path | None = None) -> "ProjectFolders":
        """Return the project of a folder with `configs` and `policies`, or of `configs` with `policies` beside it."""
        inside = folder / "configs"
        configs = inside if inside.is_dir() else folder
        beside = configs.parent if configs.name else Path("..")
        return cls(configs, policies or beside / "policies")


@dataclass(frozen=True, slots=True)
class LoadedProject:
    """A project as of one day. `access` is `None` if there are errors."""

    access: Access | None
    loaded: ConfigDocuments
    policies: PolicySet
    diagnostics: tuple[Diagnostic, ...]
    lock: Lock = field(default_factory=Lock)
    imports: tuple[UpstreamDefinition, ...] = ()
    """The known definitions of upstreams."""

    @property
    def has_errors(self) -> bool:
        return any(found.is_error for found in self.diagnostics)

    @property
    def gateway_spec(self) -> GatewaySpec:
        """The only Gateway document. The other documents in use are those that it names."""
        return next(each.spec.spec for each in self.loaded.documents if isinstance(each.spec, GatewayDocument))

    @property
    def storage_spec(self) -> SqliteStorageSpec | PostgresStorageSpec:
        documents = [each.spec for each in self.loaded.documents]
        named = {each.metadata.name: each.spec for each in documents if isinstance(each, StorageDocument)}
        return named[self.gateway_spec.storage]

    @property
    def telemetry_spec(self) -> TelemetrySpec | None:
        named = self.gateway_spec.telemetry
        documents = [each.spec for each in self.loaded.documents]
        found = {each.metadata.name: each.spec for each in documents if isinstance(each, TelemetryDocument)}
        return None if named is None else found[named]

    @property
    def identity_documents(self) -> list[IdentityProviderDocument]:
        """The identity providers, in the order of the Gateway."""
        documents = [each.spec for each in self.loaded.documents]
        named = {each.metadata.name: each for each in documents if isinstance(each, IdentityProviderDocument)}
        return [named[name] for name in self.gateway_spec.identity]


def load_project(
    project: ProjectFolders,
    *,
    environ: Mapping[str, str],
    today: date,
    environment: str | None = None,
    imports: Collection[UpstreamDefinition] | None = None,
    packages: Collection[str] | None = None,
) -> LoadedProject:
    """Load a project with every problem of its documents and its policies.

    `imports` are the definitions of upstreams, by default those of the lock file. `packages` are those that Python
    objects may be imported from, by default those that `environ` names.
    """
    folders = [
        folder for folder in (project.configs, project.policies) if folder == project.configs or _has_tests(folder)
    ]
    loaded = load_documents(folders, environ={**_python_variables(), **environ}, environment=environment)
    lock, of_lock = read_lock(project.configs)
    is_whole = not any(found.is_error for found in of_lock)
    locked, idle = resolve_pins(loaded, lock, environment=environment, is_whole=is_whole)
    read = read_openapi_files(loaded, project.configs, locked=lock.upstreams)
    allowed = _packages(environ) if packages is None else packages
    known = [*locked, *read.definitions] if imports is None else imports
    linked = link_documents(loaded, today=today, packages=allowed, imports=known)
    policies, of_files = read_policies(project.policies)
    names = _known_names(loaded, linked.snapshot, policies, known)
    of_imports = [*of_lock, *idle, *read.diagnostics]
    of_policies = [*of_files, *lint_policies(policies, names), *find_ended_rows(policies, _beginning_of(today))]
    diagnostics = sort_diagnostics(
        [*linked.diagnostics, *of_imports, *of_policies, *_find_ungranted_roles(loaded, policies, of_policies)]
    )
    if linked.snapshot is None or any(found.is_error for found in diagnostics):
        return LoadedProject(None, loaded, policies, tuple(diagnostics), lock, tuple(known))
    diagnostics = sort_diagnostics([*diagnostics, *_find_missing_approvers(linked.snapshot, policies, today)])
    # all folders of Python get one name, so that the revision does not depend on how Python is installed
    aliases = {
        value: f"${{{PYTHON_EXECUTABLE if name == PYTHON_EXECUTABLE else _FOLDERS[0]}}}"
        for name, value in _python_variables().items()
        if name not in environ
    }
    access = _build_access(linked.snapshot, policies, lock, aliases=aliases)
    of_attestations = find_attestation_problems(access, loaded, policies, environment=environment, today=today)
    diagnostics = sort_diagnostics([*diagnostics, *of_attestations])
    return LoadedProject(access, loaded, policies, tuple(diagnostics), lock, tuple(known))


def _find_ungranted_roles(
    loaded: ConfigDocuments, policies: PolicySet, problems: Iterable[Diagnostic]
) -> Iterable[Diagnostic]:
    """Return warnings of roles that are never granted. With another error, the grant may be in what was not read."""
    if loaded.has_errors or any(found.is_error for found in problems):
        return ()
    links = [cell.text for link in policies.members for cell in (link.member, link.group)]
    return find_ungranted_roles(loaded, [*links, *(row.subject.text for row in policies.permissions)])


def _find_missing_approvers(snapshot: Snapshot, policies: PolicySet, today: date) -> Iterable[Diagnostic]:
    """Return problems of approval rules that no principal can satisfy, or none of the identity providers in use."""
    members = policies.in_force(_beginning_of(today)).members
    links = [(link.member.text, link.group.text) for link in members]
    directories = [
        build_approver_directory(snapshot, links),
        build_active_approver_directory(snapshot, links, today=today),
    ]
    found: dict[Position, Diagnostic] = {}
    for directory in filter(None, directories):
        for problem in check_approvers(snapshot.gates.values(), directory):
            found.setdefault(problem.position, problem)
    return found.values()


def _build_access(snapshot: Snapshot, policies: PolicySet, lock: Lock, *, aliases: Mapping[str, str]) -> Access:
    """Build the access decision. Undeclared names are denied; a tool belongs to the class of its artifacts."""
    implied = [_membership(tool) for tool in snapshot.tools.values() if tool.artifact in snapshot.artifacts]
    complete = replace(policies, objects=(*policies.objects, *implied))
    known = KnownNames(
        tools=frozenset(snapshot.tools) | snapshot.query_names,
        classes=_classes(snapshot.artifacts, policies),
        catalogues=frozenset(snapshot.catalogues),
        tiers=snapshot.ranks,
        prompts=_offer_names(snapshot, "prompt"),
        resources=_offer_names(snapshot, "resource"),
    )
    authoriser = build_authoriser(complete, ranks=snapshot.ranks, known=known)
    confirmed = [("lock", each.name, each.confirmed) for each in lock.upstreams.values() if each.confirmed]
    revision = compute_revision(snapshot, [*_rows(policies), *confirmed], aliases=aliases)
    return Access(replace(snapshot, revision=revision), authoriser)


def _membership(tool: DeclaredTool) -> RoleLink:
    return RoleLink(PolicyCell(tool.object, tool.position), PolicyCell(f"class:{tool.artifact}", tool.position))


def _known_names(
    loaded: ConfigDocuments, snapshot: Snapshot | None, policies: PolicySet, imports: Iterable[UpstreamDefinition]
) -> KnownNames:
    """Return the names that policy rows may use, including those of tools that an upstream's import names."""
    names = loaded.names
    upstreams = [each.spec for each in loaded.documents if isinstance(each.spec, UpstreamDocument)]
    importable = {
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
    offered = _offer_names(snapshot, "prompt") if snapshot else frozenset(imported["prompt"])
    return KnownNames(
        tools=names.get("Tool", frozenset()) | served | importable | queries,
        classes=_classes(names.get("ArtifactClass", ()), policies),
        catalogues=names.get("Catalogue", frozenset()),
        tiers=snapshot.ranks if snapshot else None,
        roles=snapshot.roles.union(*(each.roles for each in snapshot.grants.values())) if snapshot else None,
        prompts=frozenset(prompts) | offered,
        resources=frozenset(groups),
    )


def _queries_named(policies: PolicySet) -> frozenset[str]:
    """Return the query tools that rows name; without a snapshot, any of them may exist."""
    objects = (row.object.text.removeprefix("tool:").replace("*", "") for row in policies.permissions)
    return frozenset(name for name in objects if name.startswith(QUERY_PREFIX))


def _offer_names(snapshot: Snapshot, kind: str) -> frozenset[str]:
    return frozenset(each.name for each in snapshot.offers.values() if each.kind == kind)


def _classes(artifacts: Iterable[str], policies: PolicySet) -> frozenset[str]:
    """Return the artifact classes and the groups of `g2` rows."""
    return frozenset(artifacts) | {link.group.text.removeprefix("class:") for link in policies.objects}


def _rows(policies: PolicySet) -> Iterable[tuple[str, ...]]:
    for permission in policies.permissions:
        yield ("p", *permission.texts, *_end_of(permission.end))
    for section, links in (("g", policies.members), ("g2", policies.objects)):
        yield from ((section, link.member.text, link.group.text, *_end_of(link.end)) for link in links)


def _end_of(end: RowEnd | None) -> tuple[str, ...]:
    return () if end is None else (end.until.isoformat(), end.ticket)


def _beginning_of(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _packages(environ: Mapping[str, str]) -> list[str]:
    return environ.get(ALLOWED_PACKAGES_VARIABLE, "").replace(",", " ").split()


def _has_tests(folder: Path) -> bool:
    return any(folder.rglob("*.y*ml")) if folder.is_dir() else False
