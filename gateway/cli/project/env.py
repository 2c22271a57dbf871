"""`gateway env`: the variables and secrets that a configuration reads, and whether they are set. Never their values."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from gateway.app import PYTHON_VARIABLES, ProjectFolders
from gateway.cli.options import DEFAULT_FOLDER, EnvironmentOption, FolderArgument, OutputOption, PoliciesOption
from gateway.cli.output import print_json, print_note, print_table, stdout
from gateway.cli.project_loader import find_project, load_with_environ
from gateway.config import (
    ConfigDocuments,
    EnvUse,
    SecretUse,
    YamlDocument,
    apply_overlays,
    drop_unused_documents,
    find_secret_uses,
    is_overlay,
    read_documents,
    substitute_environment,
)
from gateway.registries import Position

State = Literal["set", "not set", "default"]
Kind = Literal["value", "secret", "secret file"]


@dataclass(frozen=True, slots=True, order=True)
class _Use:
    name: str
    position: Position
    kind: Kind
    state: State

    @property
    def row(self) -> dict[str, str]:
        where = f"{self.position.file}:{self.position.line}"
        return {"name": self.name, "state": self.state, "kind": self.kind, "where": where}


def list_environment(
    folder: FolderArgument = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    output: OutputOption = "text",
    require: Annotated[
        bool, typer.Option("--require", help="Exit code 1 if a variable or secret without a default is not set.")
    ] = False,
) -> None:
    """List variables and secrets that a configuration reads, where, and whether they are set. Never their values.

    Secrets are those that the environment uses. Variables are those of all overlays, since every start checks all
    overlays and fails if a variable is missing.
    """
    project = find_project(folder, policies)
    loaded = load_with_environ(project, environment=environment, today=None).loaded
    uses = sorted({*_variables(loaded), *_secrets(project, environment)})
    if output == "json":
        print_json([use.row for use in uses])
    else:
        rows = [list(use.row.values()) for use in uses]
        print_table(stdout(), ("name", "state", "kind", "where"), rows, colours={"set": "green", "not set": "yellow"})
    if loaded.has_errors:
        print_note("the configuration has errors; run gateway check to see them")
    missing = sorted({use.name for use in uses if use.state == "not set"})
    if require and missing:
        print_note(f"not set: {', '.join(missing)}")
        raise typer.Exit(1)


def _variables(loaded: ConfigDocuments) -> Iterator[_Use]:
    for use in loaded.environment:
        yield _Use(use.name, use.position, "value", _find_state(use))


def _find_state(use: EnvUse) -> State:
    if use.name in PYTHON_VARIABLES and use.name not in os.environ:
        return "default"  # the gateway fills it in
    return "set" if use.is_set else "not set" if use.default is None else "default"


def _secrets(project: ProjectFolders, environment: str | None) -> Iterator[_Use]:
    for use in find_secret_uses(drop_unused_documents(_apply_environment(project, environment))):
        kind: Kind = "secret file" if use.is_file else "secret"
        state: State = "set" if _is_set(use, project) else "not set"
        yield _Use(use.written, use.position, kind, state)


def _apply_environment(project: ProjectFolders, environment: str | None) -> list[YamlDocument]:
    """Return every document with the overlay of the environment applied, including invalid documents."""
    read, _ = read_documents(project.configs, prefix=project.configs.as_posix())
    filled = [substitute_environment(document, os.environ)[0] for document in read]
    overlays = [document for document in filled if is_overlay(document)]
    plain = [document for document in filled if not is_overlay(document)]
    return apply_overlays(plain, overlays, environment=environment)[0]


def _is_set(use: SecretUse, project: ProjectFolders) -> bool:
    if use.is_file:
        return os.access(project.configs / use.name, os.R_OK)
    return bool(os.environ.get(use.name))
