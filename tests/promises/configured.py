"""A small sound project, with documents added to it, as the loader sees it."""

import shutil
from collections.abc import Collection
from datetime import date
from pathlib import Path

from gateway.assembly import Assembled, Project, assemble
from gateway.governance.imports import ImportedDefinition

SMALL = Path(__file__).parent.parent / "projects" / "small"


def configured(
    folder: Path, *documents: str, imports: Collection[ImportedDefinition] = (), environ: dict[str, str] | None = None
) -> Assembled:
    """The small project with more documents in it, each without its `apiVersion`."""
    shutil.copytree(SMALL, folder, dirs_exist_ok=True)
    text = "\n---\n".join(f"apiVersion: gateway/v1\n{document.strip()}" for document in documents)
    if documents:
        (folder / "configs" / "more.yaml").write_text(text, encoding="utf-8")
    return assemble(Project.at(folder), environ=environ or {}, today=date(2026, 11, 16), imports=imports)


def codes(found: Assembled) -> list[str]:
    return [each.code for each in found.diagnostics]


def tool(
    name: str, *, backend: str = "{type: http, method: GET, url: 'http://127.0.0.1:9000/x'}", more: str = ""
) -> str:
    """A Tool document that is nobody's yet, in flow style but for what is added."""
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
