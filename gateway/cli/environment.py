"""`gateway env`: what a configuration reads from outside itself, and whether it is there. Never a value."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from gateway.assembly import GIVEN, Project
from gateway.cli.console import note, out, print_json, print_table
from gateway.cli.project import DEFAULT_FOLDER, Environment, Folder, Policies, assembled, project_at
from gateway.config.folders import read_folder
from gateway.config.loader import Loaded
from gateway.config.nodes import Document
from gateway.config.overlays import apply, is_overlay
from gateway.config.secret_uses import SecretUse, in_use, secret_uses
from gateway.config.substitution import EnvUse, substitute
from gateway.governance.diagnostics import Position

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
    folder: Folder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    output: Annotated[Literal["text", "json"], typer.Option(help="For people, or for programs.")] = "text",
    require: Annotated[
        bool, typer.Option("--require", help="Exit code 1 if something without a default is not set.")
    ] = False,
) -> None:
    """List what a configuration reads from outside: variables and secrets, where, whether set. Never a value.

    Secrets are those that the environment uses. Variables are those of every overlay: all of them are checked at every
    start, and none may lack one.
    """
    project = project_at(folder, policies)
    loaded = assembled(project, environment=environment, today=None).loaded
    uses = sorted({*_variables(loaded), *_secrets(project, environment)})
    if output == "json":
        print_json([use.row for use in uses])
    else:
        rows = [list(use.row.values()) for use in uses]
        print_table(out(), ("name", "state", "kind", "where"), rows, colours={"set": "green", "not set": "yellow"})
    if loaded.has_errors:
        note("the configuration has errors; gateway check shows them")
    missing = sorted({use.name for use in uses if use.state == "not set"})
    if require and missing:
        note(f"not set: {', '.join(missing)}")
        raise typer.Exit(1)


def _variables(loaded: Loaded) -> Iterator[_Use]:
    for use in loaded.environment:
        yield _Use(use.name, use.position, "value", _state(use))


def _state(use: EnvUse) -> State:
    if use.name in GIVEN and use.name not in os.environ:
        return "default"  # the gateway fills it in
    return "set" if use.is_set else "not set" if use.default is None else "default"


def _secrets(project: Project, environment: str | None) -> Iterator[_Use]:
    for use in secret_uses(in_use(_effective(project, environment))):
        kind: Kind = "secret file" if use.is_file else "secret"
        state: State = "set" if _is_there(use, project) else "not set"
        yield _Use(use.written, use.position, kind, state)


def _effective(project: Project, environment: str | None) -> list[Document]:
    """Every document as it is in the environment, also where its shape is wrong."""
    read, _ = read_folder(project.configs, prefix=project.configs.as_posix())
    filled = [substitute(document, os.environ)[0] for document in read]
    overlays = [document for document in filled if is_overlay(document)]
    plain = [document for document in filled if not is_overlay(document)]
    return apply(plain, overlays, environment=environment)[0]


def _is_there(use: SecretUse, project: Project) -> bool:
    if use.is_file:
        return os.access(project.configs / use.name, os.R_OK)
    return bool(os.environ.get(use.name))
