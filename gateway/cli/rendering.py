"""`gateway render`: the effective configuration as one file, environment names as written, the overlay applied."""

from typing import Annotated

import typer

from gateway.assembly import Project
from gateway.cli.console import print_document
from gateway.cli.project import (
    DEFAULT_FOLDER,
    Environment,
    Folder,
    Policies,
    Today,
    assembled,
    project_at,
    sound,
)
from gateway.config.effective import effective_yaml
from gateway.config.nodes import Document
from gateway.config.overlays import is_overlay


def render_project(
    folder: Folder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    on: Today = None,
    origins: Annotated[
        bool, typer.Option("--origins", help="Behind each value, the file and line it is from.")
    ] = False,
) -> None:
    """Print the effective configuration as one file that loads again. Overlays are applied and left out."""
    project = project_at(folder, policies)
    found = sound(assembled(project, environment=environment, today=on), project)
    documents = [each.source for each in found.loaded.documents if _is_configuration(each.source, project)]
    print_document(effective_yaml(documents, origins=origins))


def _is_configuration(document: Document, project: Project) -> bool:
    """What stands among the policies stays there; an overlay that is applied says nothing more."""
    return not is_overlay(document) and not document.file.startswith(f"{project.policies.as_posix()}/")
