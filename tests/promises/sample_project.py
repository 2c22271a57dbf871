"""A small valid project with documents added to it, as the loader sees it."""

import shutil
from collections.abc import Collection
from datetime import date
from pathlib import Path

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.registries.imported_definition import UpstreamDefinition
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"


def load_with(
    folder: Path, *documents: str, imports: Collection[UpstreamDefinition] = (), environ: dict[str, str] | None = None
) -> LoadedProject:
    """Load the small project with more documents, each without its `apiVersion`."""
    shutil.copytree(SMALL, folder, dirs_exist_ok=True)
    text = "\n---\n".join(f"apiVersion: gateway/v1\n{document.strip()}" for document in documents)
    if documents:
        (folder / "configs" / "more.yaml").write_text(text, encoding="utf-8")
    return load_project(
        ProjectFolders.from_folder(folder), environ=environ or {}, today=date(2026, 11, 16), imports=imports
    )


def codes(found: LoadedProject) -> list[str]:
    return [each.code for each in found.diagnostics]


def tool(
    name: str, *, backend: str = "{type: http, method: GET, url: 'http://127.0.0.1:9000/x'}", more: str = ""
) -> str:
    """Return a Tool document that is in no catalogue, in flow style except for `more`."""
    return f"""
kind: Tool
metadata: {{name: {name}, owner: team}}
spec:
  version: 1.0.0
  lifecycle: draft
  description: Does {name}.
  trust: {{tier: internal, flags: []}}
  input: {{schema: {{type: object}}}}
  backend: {{type: http, method: GET, url: "http://127.0.0.1:9000/x"}}
{more}"""
