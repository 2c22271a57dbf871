"""From the lock file to imported tools: offline, and pinned as long as the upstream is the locked one."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.config.lock.lock_file import LOCK_FILE, Lock, LockedUpstream, LockSource, render_lock
from gateway.config.lock.pin_resolution import list_upstreams, lock_source
from gateway.registries.imported_definition import UpstreamDefinition
from tests.support.paths import ROOT

SMALL = ROOT / "tests" / "projects" / "small"
HTTP = "{type: streamable-http, url: 'https://${WIKI_HOST:-wiki.example.com}/mcp'}"
STDIO = "{type: stdio, argv: ['${PROGRAM}', --all]}"
OPENAPI = "{type: openapi, document: wiki.json, server: 'https://wiki.example.com'}"
SOURCE: LockSource = ("streamable-http", "https://${WIKI_HOST:-wiki.example.com}/mcp")
FIND = {
    "name": "find",
    "title": "Find pages",
    "description": "Finds pages.",
    "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}},
}
UPSTREAM = """\
apiVersion: gateway/v1
kind: Upstream
metadata: {{name: wiki, owner: team-docs}}
spec:
  transport: {transport}
  import: {{include: [find], trust: {{tier: internal, flags: []}}}}
"""
TOOL = """\
---
apiVersion: gateway/v1
kind: Tool
metadata: {name: order_search, owner: team-docs}
spec:
  version: 1.0.0
  description: Ours.
  trust: {tier: internal, flags: []}
  backend: {type: mcp, upstream: wiki, tool: open}
"""
CATALOGUE = """\
---
apiVersion: gateway/v1
kind: Catalogue
metadata: {name: docs, owner: team-docs}
spec:
  audience: [role:clerk]
  include: [{upstreams: [wiki]}]
  publish: {path: /docs}
"""


def project(
    folder: Path, *given: Mapping[str, Any], source: LockSource = SOURCE, transport: str = HTTP
) -> ProjectFolders:
    copytree(SMALL, folder, dirs_exist_ok=True)
    (folder / "configs" / "wiki.yaml").write_text(UPSTREAM.format(transport=transport) + CATALOGUE + TOOL)
    if given:
        definitions = [UpstreamDefinition.read("wiki", each) for each in given]
        lock = Lock().with_upstream(LockedUpstream("wiki", {"default": source}), definitions)
        (folder / "configs" / LOCK_FILE).write_text(render_lock(lock), encoding="utf-8")
    return ProjectFolders.from_folder(folder)


def load(found: ProjectFolders, **environ: str) -> LoadedProject:
    return load_project(found, environ={"TOKEN": "x", "PROGRAM": "/bin/wiki", **environ}, today=date(2026, 11, 16))


def codes(found: LoadedProject) -> set[str]:
    return {each.code for each in found.diagnostics}


def test_locked_tool_is_published_without_its_server(tmp_path: Path) -> None:
    found = load(project(tmp_path, FIND))

    assert found.access is not None, found.diagnostics
    tool = found.access.snapshot.tools["wiki.find"]
    assert (tool.title, tool.description, tool.is_imported) == ("Find pages", "Finds pages.", True)
    assert tool.input_schema == {**FIND["inputSchema"], "additionalProperties": False}  # type: ignore[dict-item]  # a dict
    assert tool.pinned_digest == UpstreamDefinition.read("wiki", FIND).digest
    assert found.access.snapshot.catalogues["docs"].tools["wiki_find"] == "wiki.find"


def test_declared_tool_has_the_schema_that_is_locked(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"page": {"type": "string"}}}
    found = load(project(tmp_path, {"name": "open", "description": "Theirs.", "inputSchema": schema}))

    assert found.access is not None
    tool = found.access.snapshot.tools["order_search"]
    assert (tool.description, tool.is_imported) == ("Ours.", False)
    assert tool.input_schema == {**schema, "additionalProperties": False}
    assert tool.pinned_digest is not None
    assert "wiki.open" not in found.access.snapshot.tools


def test_without_a_lock_nothing_is_imported(tmp_path: Path) -> None:
    found = load(project(tmp_path))

    assert found.access is not None
    assert [name for name in found.access.snapshot.tools if name.startswith("wiki.")] == []
    assert found.access.snapshot.tools["order_search"].pinned_digest is None


def test_tool_of_another_server_is_known_and_not_pinned(tmp_path: Path) -> None:
    found = load(project(tmp_path, FIND, source=("streamable-http", "https://evil.example.com/mcp")))

    assert found.access is not None
    assert "lock-source" in codes(found)
    assert found.access.snapshot.tools["wiki.find"].pinned_digest is None


def test_what_the_environment_fills_in_is_not_another_server(tmp_path: Path) -> None:
    found = load(project(tmp_path, FIND), WIKI_HOST="wiki.test")

    assert "lock-source" not in codes(found)


@pytest.mark.parametrize(
    ("transport", "source"),
    [
        (HTTP, SOURCE),
        (STDIO, ("stdio", "${PROGRAM}", "--all")),
        (OPENAPI, ("openapi", "wiki.json", "https://wiki.example.com")),
    ],
    ids=["streamable-http", "stdio", "openapi"],
)
def test_source_is_what_the_document_declares(transport: str, source: LockSource, tmp_path: Path) -> None:
    found = load(project(tmp_path, transport=transport))

    assert lock_source(list_upstreams(found.loaded)["wiki"]) == source


def test_lock_is_part_of_the_revision(tmp_path: Path) -> None:
    revisions = set()
    for number, text in enumerate(("Finds pages.", "Finds pages!")):
        found = load(project(tmp_path / str(number), {**FIND, "outputSchema": {"description": text}}))
        assert found.access is not None
        revisions.add(found.access.snapshot.revision)

    assert len(revisions) == 2


def test_prompts_and_templates_become_no_tools(tmp_path: Path) -> None:
    found = project(tmp_path, FIND)
    prompt = UpstreamDefinition.read("wiki", {"name": "find"}, kind="prompt")
    lock = Lock().with_upstream(LockedUpstream("wiki", {"default": SOURCE}), [prompt])
    (tmp_path / "configs" / LOCK_FILE).write_text(render_lock(lock), encoding="utf-8")

    access = load(found).access

    assert access is not None
    assert "wiki.find" not in access.snapshot.tools


def test_rows_about_what_is_locked_are_not_blamed_for_errors_elsewhere(tmp_path: Path) -> None:
    found, documents = project(tmp_path, FIND), tmp_path / "configs" / "wiki.yaml"
    text = documents.read_text(encoding="utf-8").replace("[find]", '["*"]')
    with (tmp_path / "policies" / "policy.csv").open("a", encoding="utf-8") as rows:
        rows.write("p, role:clerk, *, tool:wiki.find, invoke, internal, allow\n")
    documents.write_text(text, encoding="utf-8")
    before = codes(load(found))
    wrong = TOOL.replace("order_search", "order_other").replace("upstream: wiki", "upstream: none")
    documents.write_text(text + wrong, encoding="utf-8")

    assert "dead-rule" not in before
    assert codes(load(found)) - before == {"unknown-reference"}


OPERATIONS = """\
apiVersion: gateway/v1
kind: Upstream
metadata: {name: wiki, owner: team-docs}
spec:
  transport: {type: openapi, document: "https://wiki.example.com/openapi.json", server: 'https://wiki.example.com'}
  import: {include: ["*"], SELECT trust: {tier: internal, flags: []}}
"""


@pytest.mark.parametrize(
    ("select", "served"),
    [
        ("", {"wiki.read", "wiki.write"}),
        ("select: {methods: [GET]},", {"wiki.read"}),
        ("select: {paths: ['/pages/*']},", {"wiki.write"}),
        ("select: {tags: [pages]},", {"wiki.read", "wiki.write"}),  # the lock does not contain them
    ],
)
def test_locked_operation_that_is_selected_no_more_is_not_served(tmp_path: Path, select: str, served: Any) -> None:
    def operation(name: str, method: str, path: str) -> dict[str, Any]:
        request = {"gateway/request": {"method": method, "path": path}, "gateway/answer": {"artifact": "json"}}
        return {"name": name, "description": "Pages.", "inputSchema": {"type": "object"}, "_meta": request}

    source = ("openapi", "https://wiki.example.com/openapi.json", "https://wiki.example.com")
    found = project(tmp_path, operation("read", "GET", "/pages"), operation("write", "POST", "/pages/a"), source=source)
    text = OPERATIONS.replace("SELECT", select) + CATALOGUE
    (tmp_path / "configs" / "wiki.yaml").write_text(text, encoding="utf-8")

    again = load(found)

    assert again.access is not None, again.diagnostics
    assert {name for name in again.access.snapshot.tools if name.startswith("wiki.")} == served
    assert ("idle-lock" in codes(again)) == (len(served) == 1)


def test_broken_lock_is_an_error(tmp_path: Path) -> None:
    found = project(tmp_path)
    (tmp_path / "configs" / LOCK_FILE).write_text("version: 9", encoding="utf-8")

    assert load(found).access is None
    assert codes(load(found)) == {"bad-lock"}


def test_tool_that_its_server_does_not_describe_can_be_published(tmp_path: Path) -> None:
    found = load(project(tmp_path, {"name": "find", "description": " "}))

    assert found.access is not None
    assert found.access.snapshot.tools["wiki.find"].description == "The server provides no description."
