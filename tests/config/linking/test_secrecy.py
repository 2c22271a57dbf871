"""Whatever breaks because of a value from the environment, no message repeats that value."""

import json
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gateway.app.project import ProjectFolders, load_project
from gateway.registries.diagnostics import Diagnostic
from tests.config.linking.projects import document, tool, upstream
from tests.support.paths import ROOT

SMALL: Final = ROOT / "tests" / "projects" / "small"
SECRET: Final = "s3cr3t-value"
MORE: Final = (
    upstream(exclude=["secret"], trust={"tier": "internal", "flags": ["egress"]}),
    tool("wiki_open", trust={"tier": "internal"}, backend={"type": "mcp", "upstream": "wiki", "tool": "open"}),
    tool(
        "price",
        trust={"tier": "internal"},
        lifecycle="deprecated",
        deprecation={"since": "2026-01-01", "removeAfter": "2027-01-01", "use": "order_read"},
        backend={"type": "python", "entrypoint": "gateway.examples.pricing:quote"},
    ),
    document("ArtifactClass", "invoice", {"description": "x", "class": "gateway.examples.artifacts:InvoiceArtifact"}),
    document(
        "Overlay",
        "prod",
        {
            "environment": "prod",
            "patches": [{"target": {"kind": "Storage", "name": "main"}, "merge": {"path": "other.db"}}],
        },
    ),
)
# Read with a loader that yields only strings: ${TOKEN} could stand in each of them.
DOCUMENTS: Final[list[dict[str, Any]]] = [
    each
    for text in (*(path.read_text(encoding="utf-8") for path in sorted(SMALL.rglob("*.yaml"))), *MORE)
    for each in yaml.safe_load_all(text)
]


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    match value:
        case dict():
            for key, each in value.items():
                yield from places(each, (*path, key))
        case list():
            for index, each in enumerate(value):
                yield from places(each, (*path, index))
        case _:
            yield path


def with_token(number: int, path: tuple[str | int, ...]) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = json.loads(json.dumps(DOCUMENTS))
    *parents, last = path
    place: Any = documents[number]
    for step in parents:
        place = place[step]
    place[last] = "${TOKEN}"
    return documents


def find_problems(documents: list[dict[str, Any]], folder: Path) -> tuple[Diagnostic, ...]:
    text = "---\n".join(json.dumps(each) + "\n" for each in documents)
    (folder / "configs" / "all.yaml").write_text(text, encoding="utf-8")
    project, environ = ProjectFolders.from_folder(folder), {"TOKEN": SECRET}
    return load_project(project, environ=environ, today=date(2026, 11, 16), environment="prod").diagnostics


@pytest.mark.parametrize(
    "number", range(len(DOCUMENTS)), ids=[f"{each['kind']}-{each['metadata']['name']}" for each in DOCUMENTS]
)
def test_no_message_repeats_a_value_from_the_environment(number: int, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    shutil.copytree(SMALL / "policies", tmp_path / "policies", ignore=shutil.ignore_patterns("tests"))

    for path in places(DOCUMENTS[number]):
        if path != ("metadata", "name"):  # a document's name is not a secret: policies and clients use it
            for each in find_problems(with_token(number, path), tmp_path):
                assert SECRET not in f"{each.message} {each.help} {each.related}", path
