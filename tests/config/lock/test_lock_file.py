"""The lock file: reads back as it was written, is readable in a diff, and is refused at the exact faulty place."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.lock.lock_file import HEADING, LOCK_FILE, MAX_BYTES, Lock, LockedUpstream, read_lock, render_lock
from gateway.config.yaml.parser import parse_text
from gateway.registries.imported_definition import UpstreamDefinition

SOURCE = ("stdio", "/usr/bin/wiki", "--all")
UPSTREAM = LockedUpstream("wiki", {"default": SOURCE}, {"name": "wiki", "version": "1.2.3"})
FIND = {
    "name": "find",
    "title": "Find pages",
    "description": "Finds pages.\n\n* by their title\n* by their text\n",
    "inputSchema": {
        "type": "object",
        "required": ["query"],
        "properties": {"query": {"type": "string", "description": "Words " * 30 + "end", "minLength": 1}, "on": {}},
    },
    "annotations": {"readOnlyHint": True},
}
TEXT = r"""version: 1
---
upstream: wiki
sources:
  default: [stdio, "/usr/bin/wiki", "--all"]
server:
  name: wiki
  version: "1.2.3"
---
upstream: wiki
tool: find
digest: "sha256:DIGEST"
definition:
  name: find
  title: "Find pages"
  description: |
    Finds pages.

    * by their title
    * by their text
  annotations:
    readOnlyHint: true
  inputSchema:
    properties:
      "on": {}
      query:
        description: >-
          Words Words Words Words Words Words Words Words Words Words Words Words Words Words Words Words
          Words Words Words Words Words Words Words Words Words Words Words Words Words Words end
        minLength: 1
        type: string
    required: [query]
    type: object
"""

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
AWKWARD = st.text(" \n\t-#:'\"|>{[]}&*!%@`ab\u2028\u202e", max_size=150)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LONG = st.lists(st.sampled_from(["word", "#", "-", "a: b", "", "\n", "---", "é"]), max_size=60).map(" ".join)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | AWKWARD | LONG,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


def make_lock(*given: dict[str, Any]) -> Lock:
    definitions = [UpstreamDefinition.read("wiki", each) for each in given]
    return Lock().with_upstream(UPSTREAM, definitions)


def written(folder: Path, text: str) -> Path:
    (folder / LOCK_FILE).write_text(text, encoding="utf-8")
    return folder


def test_lock_is_text_that_people_read() -> None:
    lock = make_lock(FIND)

    assert render_lock(lock) == HEADING + TEXT.replace("DIGEST", lock.definitions[0].digest)


def test_lock_is_read_back(tmp_path: Path) -> None:
    lock = make_lock(FIND, {"name": "open"})

    found, problems = read_lock(written(tmp_path, render_lock(lock)))

    assert problems == []
    assert [(each.identity, each.digest, each.is_pinned) for each in found.definitions] == [
        (each.identity, each.digest, True) for each in lock.definitions
    ]
    assert found.upstreams["wiki"].sources == {"default": SOURCE}
    assert found.upstreams["wiki"].server == {"name": "wiki", "version": "1.2.3"}
    assert render_lock(found) == render_lock(lock)


@given(VALUES)
@settings(max_examples=300)
def test_any_definition_survives_a_round_trip(value: Any) -> None:
    lock = make_lock({"name": "find", "x": value})

    documents, problems = parse_text(render_lock(lock), LOCK_FILE)

    assert problems == []
    again = UpstreamDefinition.read("wiki", documents[-1].data["definition"])
    assert again.digest == lock.definitions[0].digest


def test_what_no_reader_sees_is_escaped() -> None:
    text = render_lock(make_lock({"name": "find", "description": "a\u202eb\u200bc\U000e0041d\n" * 3}))

    assert text.isascii()
    assert r"a\u202eb\u200bc\U000e0041d\n" in text


def test_change_of_a_line_is_a_change_of_a_line() -> None:
    before = render_lock(make_lock(FIND)).splitlines()
    changed = {**FIND, "description": "Finds pages.\n\n* by their title\n* by their content\n"}
    after = render_lock(make_lock(changed)).splitlines()

    differing = [line for line, other in zip(before, after, strict=True) if line != other]
    assert [line.partition(":")[0].strip() for line in differing] == ["digest", "* by their text"]


def test_order_is_that_of_kinds_and_names() -> None:
    prompt = UpstreamDefinition.read("wiki", {"name": "a"}, kind="prompt")
    template = UpstreamDefinition.read("wiki", {"name": "b", "uriTemplate": "x://{y}"}, kind="resourceTemplate")
    tools = [UpstreamDefinition.read("wiki", {"name": name}) for name in ("z", "c")]

    lock = Lock().with_upstream(UPSTREAM, [template, prompt, *tools])

    assert [(each.kind, each.name) for each in lock.definitions] == [
        ("tool", "c"),
        ("tool", "z"),
        ("prompt", "a"),
        ("resourceTemplate", "b"),
    ]


def test_new_lock_of_an_upstream_replaces_its_old_one_only() -> None:
    other = UpstreamDefinition.read("docs", {"name": "open"})
    lock = make_lock(FIND).with_upstream(LockedUpstream("docs", {"default": ("stdio", "/docs")}), [other])

    found = lock.with_upstream(UPSTREAM, [UpstreamDefinition.read("wiki", {"name": "new"})])

    assert [each.identity for each in found.definitions] == ["docs.open", "wiki.new"]
    assert [each.identity for each in found.restrict_to(["wiki"]).definitions] == ["wiki.new"]


@pytest.mark.parametrize(
    ("sources", "environment", "is_from"),
    [
        ({"default": SOURCE}, None, True),
        ({"default": SOURCE}, "prod", True),
        ({"default": ("stdio", "/other")}, None, False),
        ({"default": ("stdio", "/other"), "prod": SOURCE}, "prod", True),
        ({"default": SOURCE, "prod": ("stdio", "/other")}, "prod", False),
        ({"prod": SOURCE}, None, False),
    ],
)
def test_source_is_that_of_the_environment(sources: Any, environment: str | None, is_from: bool) -> None:
    assert LockedUpstream("wiki", sources).has_source(SOURCE, environment=environment) == is_from


def test_folder_without_a_lock_has_an_empty_one(tmp_path: Path) -> None:
    assert read_lock(tmp_path) == (Lock(), [])


GOOD = render_lock(make_lock(FIND))
HEAD = "version: 1\n---\nupstream: wiki\nsources: {}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1: bad-lock: the file is empty"),
        ("a: [", "1:5: yaml-syntax"),
        ("{}", "1:1: bad-lock: the file does not start with its version"),
        ("version: 2", "1:1: bad-lock: the file has version 2, but this program supports only 1"),
        ("version: '1'", "1:1: bad-lock: the version of the file is invalid"),
        ("version: true", "1:1: bad-lock: the version of the file is invalid"),
        ("version: 1\n---\na: 1", "3:1: bad-lock: the block names no upstream"),
        ("version: 1\n---\nupstream: w\nsources: 5", "4:1: bad-lock: sources must map environments to lists of texts"),
        ("version: 1\n---\nupstream: w\nsources: {}\nserver: {a: 1}", "5:1: bad-lock: server must map names to texts"),
        ("version: 1\n---\nupstream: w\nsources: {}\nx: 1", "5:1: bad-lock: 'x' is not a field of an upstream"),
        (f"{HEAD}---\nupstream: wiki\nsources: {{}}\n", "6:1: bad-lock: the upstream 'wiki' is listed twice"),
        (f"{HEAD}---\nupstream: wiki\ntool: a", "6:1: bad-lock: the block is neither"),
        (
            f"{HEAD}---\nupstream: wiki\ntool: a\ndigest: x\ndefinition: {{name: b}}",
            "7:1: bad-lock: the block has the name 'a', but its definition 'b'",
        ),
        (
            f"{HEAD}---\nupstream: wiki\ntool: a\ndigest: x\ndefinition: {{name: 5}}",
            "9:1: bad-lock: the definition cannot be used: it has no name",
        ),
        (GOOD.replace("Finds pages.", "Finds pages!"), "13:9: lock-tampered: the digest of wiki.find does not match"),
        (GOOD.replace('digest: "sha256:', 'digest: "sha1:'), "13:9: lock-tampered"),
        (
            GOOD.replace("upstream: wiki\ntool", "upstream: docs\ntool"),
            "11:1: bad-lock: the file has no source of upstream 'docs'",
        ),
        (GOOD + "---" + GOOD.rpartition("---")[2], "37:1: bad-lock: wiki.find is locked twice"),
        ("a: &x 1\nb: *x", "1:1: bad-lock"),
        ("a: !!python/object:os.system x", "1:4: yaml-tag"),
        ("version: 1\nversion: 2", "2:1: duplicate-key"),
    ],
    ids=lambda value: value[-40:],
)
def test_what_is_wrong_is_reported_where_it_stands(text: str, expected: str, tmp_path: Path) -> None:
    found, problems = read_lock(written(tmp_path, text))

    [problem] = problems
    place = f"{problem.position.line}:{problem.position.column}"
    assert f"{place}: {problem.code}: {problem.message}".startswith(expected)
    assert problem.is_error
    assert found.definitions == () or "twice" in expected


def test_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / LOCK_FILE, "wb") as file:
        file.truncate(MAX_BYTES + 1)

    _, [problem] = read_lock(tmp_path)

    assert (problem.code, problem.help) == ("file-too-large", "import fewer definitions")


def test_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK_FILE)

    _, [problem] = read_lock(tmp_path)

    assert problem.code == "unreadable-file"
