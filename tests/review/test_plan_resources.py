"""Plans and lists of projects with prompts and resources: who gains them, who loses them, and which one gets a name."""

import json
from itertools import product
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.lock.lock_file import LOCK_FILE, Lock, LockedUpstream, render_lock
from gateway.model.primitives.name_patterns import glob_matches, globs_overlap
from gateway.registries.imported_definition import UpstreamDefinition
from gateway.review.plan.access_changes import AccessChange
from gateway.review.plan.builder import NameCollision
from gateway.review.plan.renderer import plan_data, plan_text
from tests.review.project_edits import copy_project, edit, plan_edit
from tests.support.gateways.commands import run_gateway

UPSTREAM = """\
apiVersion: gateway/v1
kind: Upstream
metadata: {{name: {name}, owner: team-docs}}
spec:
  transport: {{type: streamable-http, url: "http://127.0.0.1:9001/{name}"}}
  import:
    include: [find]
    prompts: ["*"]
    resources: [{{name: pages, uris: ["{uris}"]}}]
    trust: {{tier: internal, flags: []}}
"""
CATALOGUE = """\
---
apiVersion: gateway/v1
kind: CollisionPolicy
metadata: {name: bare, owner: team-docs}
spec: {onCollision: keep, imports: {prefix: ""}}
---
apiVersion: gateway/v1
kind: Catalogue
metadata: {name: docs, owner: team-docs}
spec:
  audience: [role:clerk]
  collisionPolicy: bare
  include: [{upstreams: [wiki, notes]}]
  publish: {path: /docs}
"""
ROWS = """
p, role:clerk, docs, prompt:*,            invoke, internal, allow
p, role:clerk, docs, resource:wiki.pages, read,   internal, allow
"""


def project(folder: Path, *, rows: str = "", uris: str = "wiki://*") -> Path:
    """Two upstreams that have a prompt of the same name."""
    copy_project(folder)
    upstreams = [UPSTREAM.format(name=name, uris=each) for name, each in (("wiki", "wiki://*"), ("notes", uris))]
    (folder / "configs" / "docs.yaml").write_text("---\n".join(upstreams) + CATALOGUE, encoding="utf-8")
    lock = Lock()
    for name in ("wiki", "notes"):
        found = [UpstreamDefinition.read(name, {"name": each}, kind="prompt") for each in ("review", name)]
        source = {"default": ("streamable-http", f"http://127.0.0.1:9001/{name}")}
        lock = lock.with_upstream(LockedUpstream(name, source), found)
    (folder / "configs" / LOCK_FILE).write_text(render_lock(lock), encoding="utf-8")
    with (folder / "policies" / "policy.csv").open("a", encoding="utf-8") as policy:
        policy.write(rows)
    return folder


def test_plan_states_who_gains_prompts_and_resources(tmp_path: Path) -> None:
    plan = plan_edit(project(tmp_path / "before"), project(tmp_path / "after", rows=ROWS))

    gained = {(each.tool, each.before, each.after) for each in plan.access if each.caller == "role:clerk"}
    assert gained == {
        ("prompt:notes.notes", "none", "gets"),
        ("prompt:notes.review", "none", "gets"),
        ("prompt:wiki.wiki", "none", "gets"),
        ("resource:wiki.pages", "none", "reads"),
    }
    assert all(each.is_gain for each in plan.access)
    assert "access-gained" in {each.code for each in plan.findings}
    assert "resource:wiki.pages (reads)" in plan_text(plan)
    assert plan_data(plan)["access"][0]["after"] in ("gets", "reads")


def test_plan_states_who_loses_them(tmp_path: Path) -> None:
    hidden = ROWS + "p, role:clerk, docs, prompt:wiki.wiki, discover, internal, deny\n"
    unread = hidden.replace("resource:wiki.pages, read,", "resource:wiki.pages, discover,")

    plan = plan_edit(project(tmp_path / "before", rows=ROWS), project(tmp_path / "after", rows=unread))

    assert {each for each in plan.access if each.caller == "role:clerk"} == {
        AccessChange("role:clerk", "docs", "prompt:wiki.wiki", "gets", "none"),
        AccessChange("role:clerk", "docs", "resource:wiki.pages", "reads", "none"),
    }


def test_catalogue_that_no_longer_has_them_takes_them_away(tmp_path: Path) -> None:
    before, after = project(tmp_path / "before", rows=ROWS), project(tmp_path / "after", rows=ROWS)
    edit(after, "configs/docs.yaml", "[wiki, notes]", "[wiki]")

    lost = {each.tool for each in plan_edit(before, after).access if each.caller == "role:clerk"}

    assert lost == {"prompt:notes.notes", "prompt:notes.review", "prompt:wiki.review"}  # the last one gets its name


def test_names_of_prompts_and_shared_uris_are_in_the_plan(tmp_path: Path) -> None:
    before = copy_project(tmp_path / "before")

    plan = plan_edit(before, project(tmp_path / "after", rows=ROWS, uris="wiki://*/private"))

    assert plan.collisions == (
        NameCollision("docs", "review", "notes", "wiki", "keep", "prompt"),
        NameCollision("docs", "wiki://*", "notes", "wiki", "keep", "resource"),
    )
    assert "prompt review in docs: of notes, not of wiki" in plan_text(plan)
    assert "resources wiki://* in docs: of notes, not of wiki" in plan_text(plan)
    assert [each["kind"] for each in plan_data(plan)["collisions"]] == ["prompt", "resource"]


def test_tools_lists_prompts_and_resources_of_a_caller(tmp_path: Path) -> None:
    folder = project(tmp_path / "project", rows=ROWS)

    def list_tools(*args: str) -> str:
        done = run_gateway("tools", "--project", str(folder), "--on", "2026-11-16", *args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    everything = json.loads(list_tools("docs", "--output", "json"))
    clerk = json.loads(list_tools("docs", "--as", "user:ana", "--role", "role:clerk", "--output", "json"))
    assert [each["policy"] for each in everything] == [
        "prompt:notes.notes",
        "prompt:notes.review",
        "prompt:wiki.wiki",
        "resource:notes.pages",
        "resource:wiki.pages",
    ]
    assert clerk == [each for each in everything if each["policy"] != "resource:notes.pages"]
    assert "resource  wiki://*  resource:wiki.pages" in list_tools("docs")
    assert ["docs", "0", "3", "2"] in [line.split()[:4] for line in list_tools().splitlines()]
    collisions = json.loads(list_tools("docs", "--collisions", "--output", "json"))
    assert [each["kind"] for each in collisions] == ["prompt", "resource"]


@given(*(st.text("ab*", max_size=3) for _ in range(2)))
def test_patterns_overlap_if_some_text_fits_both(first: str, second: str) -> None:
    texts = ("".join(each) for length in range(7) for each in product("ab", repeat=length))
    fits_both = any(glob_matches(each, first) and glob_matches(each, second) for each in texts)

    assert globs_overlap(first, second) == fits_both
