"""`gateway render`: the effective configuration as one file, with overlays applied and variables not replaced.
`gateway schema`: the JSON Schema for editors.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from gateway.app import ProjectFolders
from gateway.cli.options import DEFAULT_FOLDER, DayOption, EnvironmentOption, FolderArgument, PoliciesOption
from gateway.cli.output import fail, print_document, print_line, stdout
from gateway.cli.project_loader import find_project, load_with_environ, require_valid
from gateway.config import YamlDocument, build_editor_schema, is_overlay, render_effective_yaml


def render_project(
    folder: FolderArgument = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    on: DayOption = None,
    origins: Annotated[
        bool, typer.Option("--origins", help="Print the file and line of each value behind it.")
    ] = False,
) -> None:
    """Print the effective configuration as one file that loads again. Overlays are applied and left out."""
    project = find_project(folder, policies)
    found = require_valid(load_with_environ(project, environment=environment, today=on), project)
    documents = [each.source for each in found.loaded.documents if _is_configuration(each.source, project)]
    print_document(render_effective_yaml(documents, origins=origins))


def _is_configuration(document: YamlDocument, project: ProjectFolders) -> bool:
    """Whether the document is rendered: it is no overlay, and not in the folder of policies."""
    return not is_overlay(document) and not document.file.startswith(f"{project.policies.as_posix()}/")


def print_schema(
    write: Annotated[Path | None, typer.Option(help="Write it to this file instead of printing it.")] = None,
) -> None:
    """Print the JSON Schema of all kinds, for editors."""
    text = json.dumps(build_editor_schema(), indent=2, ensure_ascii=False) + "\n"
    if write is None:
        print_document(text, is_json=True)
        return
    try:
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{write} cannot be written: {(error.strerror or 'unknown reason').lower()}", code=1)
    print_line(stdout(), f"wrote {write}")
