"""Revision: equal for equal meaning however it is written, different for every change of meaning."""

import json
import random
from collections.abc import Callable, Iterable
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.app.project import ProjectFolders, load_project
from tests.support.paths import ROOT

SMALL: Final = ROOT / "tests" / "projects" / "small"
TODAY: Final = date(2026, 11, 16)

Documents = dict[tuple[str, str], dict[str, Any]]
Rows = list[str]
Edit = Callable[[Documents, Rows], None]


def read_small() -> tuple[Documents, Rows]:
    """The small project as plain data, read with another loader than ours; nothing in it is ambiguous."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(SMALL.glob("**/*.yaml"))]
    documents = [each for text in texts for each in yaml.load_all(text, yaml.BaseLoader)]
    rows = [line for path in sorted(SMALL.glob("**/*.csv")) for line in path.read_text(encoding="utf-8").splitlines()]
    named = {(each["kind"], each["metadata"]["name"]): _typed(each) for each in documents}
    return named, [row for row in rows if row and not row.startswith("#")]


def _typed(value: Any) -> Any:
    """Convert strings that stand for numbers and booleans; the loader above yields only strings."""
    match value:
        case dict():
            return {key: _typed(each) for key, each in value.items()}
        case list():
            return [_typed(each) for each in value]
        case "true" | "false":
            return value == "true"
        case str() if value.isdecimal():
            return int(value)
    return value


def write(folder: Path, documents: Iterable[dict[str, Any]], rows: Rows, *, files: int = 1, comment: str = "") -> None:
    configs, policies = folder / "configs", folder / "policies"
    configs.mkdir(parents=True)
    policies.mkdir()
    parts: list[list[str]] = [[] for _ in range(files)]
    for index, each in enumerate(documents):
        parts[index % files].append(json.dumps(each) + f"{comment}\n")
    for index, part in enumerate(filter(None, parts)):
        (configs / f"{index}.yaml").write_text("---\n".join(part), encoding="utf-8")
    (policies / "model.conf").write_text(
        (SMALL / "policies" / "model.conf").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (policies / "policy.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")


def revision_at(folder: Path, *, today: date = TODAY) -> str:
    found = load_project(ProjectFolders.from_folder(folder), environ={}, today=today)
    assert found.access is not None, found.diagnostics
    return found.access.snapshot.revision


def revision(documents: Iterable[dict[str, Any]], rows: Rows, **how: Any) -> str:
    with TemporaryDirectory() as folder:
        write(Path(folder, "project"), documents, rows, **how)
        return revision_at(Path(folder, "project"))


BASE, ROWS = read_small()
REVISION = revision(BASE.values(), ROWS)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same data with the keys of every mapping in another order."""
    match value:
        case dict():
            keys = list(value)
            chance.shuffle(keys)
            return {key: shuffled(value[key], chance) for key in keys}
        case list():
            return [shuffled(each, chance) for each in value]
    return value


def edit(kind: str, name: str, path: str, value: Any) -> Edit:
    def change(documents: Documents, rows: Rows) -> None:
        *parents, last = path.split(".")
        place: Any = documents[kind, name]
        for step in parents:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        place[last] = value

    return change


def row_edit(old: str, new: str) -> Edit:
    def change(documents: Documents, rows: Rows) -> None:
        (index,) = [number for number, row in enumerate(rows) if old in row]
        rows[index] = rows[index].replace(old, new)

    return change


def added_row(row: str) -> Edit:
    return lambda documents, rows: rows.append(row)


READ, PAY = ("Tool", "order_read"), ("Tool", "refund_pay")
EDITS: Final[dict[str, Edit]] = {
    "description": edit(*READ, "spec.description", "Reads any order."),
    "title": edit(*READ, "metadata.title", "Read"),
    "owner": edit(*READ, "metadata.owner", "team-x"),
    "label": edit(*READ, "metadata.labels.system", "stock"),
    "annotation": edit(*READ, "metadata.annotations.docs", "https://wiki.example.com"),
    "version": edit(*READ, "spec.version", "1.0.1"),
    "flag": edit(*READ, "spec.trust.flags", ["private-data", "writes"]),
    "trusted": edit(*READ, "spec.trust.trusted", True),
    "review": edit(*PAY, "spec.trust.reviewed.date", "2026-10-02"),
    "tier": edit(*PAY, "spec.trust.tier", "community"),
    "property": edit(*READ, "spec.input.schema.properties.page", {"type": "integer"}),
    "bound": edit(*PAY, "spec.input.schema.properties.amount.minimum", 1),
    "inline": edit(*READ, "spec.output.inline", False),
    "timeout": edit(*READ, "spec.limits.timeout", "10s"),
    "url": edit(*PAY, "spec.backend.url", "http://127.0.0.1:9000/refund"),
    "idempotent": edit(*PAY, "spec.idempotent", True),
    "meta": edit(*PAY, "spec.meta.scope", "x"),
    "audience": edit("Catalogue", "desk", "spec.audience", ["role:clerk"]),
    "hidden": edit("Catalogue", "desk", "spec.hidden", ["order_read"]),
    "render": edit("Catalogue", "desk", "spec.publish.render", "plain"),
    "path": edit("Catalogue", "desk", "spec.publish.path", "/counter"),
    "instructions": edit("Catalogue", "desk", "spec.instructions", "Be kind."),
    "when": edit("GateRule", "large-refunds", "spec.when", "args.amount > 501"),
    "mode": edit("GateRule", "large-refunds", "spec.mode", "observe"),
    "approvers": edit("GateRule", "large-refunds", "spec.check.from", ["role:lead", "role:clerk"]),
    "reason": edit("GateRule", "large-refunds", "spec.check.reason", "Large"),
    "patience": edit("GateRule", "large-refunds", "spec.holdFor", "10s"),
    "stage option": edit("Pipeline", "standard", "spec.call.1.with.after", "31s"),
    "stage": edit("Pipeline", "standard", "spec.turnOutput", [{"use": "audit-summary"}]),
    "rank": edit("TrustTier", "partner", "spec.rank", 11),
    "obligation": edit("TrustTier", "partner", "spec.requires.reviewedWithin", "181d"),
    "hint": edit("TrustFlag", "private-data", "spec.hint.openWorld", True),
    "redaction": edit("ArtifactClass", "order", "spec.redact", ["$.email", "$.phone"]),
    "retention": edit("ArtifactClass", "order", "spec.retain", "1h"),
    "queries": edit("ArtifactClass", "order", "spec.queries", ["json_get"]),
    "collisions": edit("CollisionPolicy", "careful", "spec.onCollision", "keep"),
    "prefix": edit("CollisionPolicy", "careful", "spec.imports.prefix", "x_"),
    "storage": edit("Storage", "main", "spec.path", "data/other.db"),
    "roles": edit("IdentityProvider", "local", "spec.roles", ["role:lead", "role:clerk", "role:agent"]),
    "default catalogue": edit("Gateway", "small", "spec.defaults.catalogue", "desk"),
    "effect": row_edit("invoke,         quarantine, deny", "invoke,         quarantine, allow"),
    "ceiling": row_edit("read,            internal", "read,            partner"),
    "member": added_row("g, user:bo, role:clerk"),
    "group": added_row("g2, tool:order_read, class:payment"),
}


def edited(names: Iterable[str]) -> tuple[Documents, Rows]:
    documents, rows = json.loads(json.dumps(list(BASE.values()))), list(ROWS)
    named = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    for name in names:
        EDITS[name](named, rows)
    return named, rows


@pytest.mark.parametrize("name", EDITS)
def test_change_of_meaning_is_another_revision(name: str) -> None:
    documents, rows = edited([name])

    assert revision(documents.values(), rows) != REVISION


SAME: Final[dict[str, Edit]] = {
    "default inline": edit(*PAY, "spec.output.inline", True),
    "default mode": edit("GateRule", "large-refunds", "spec.mode", "enforce"),
    "default count": edit("GateRule", "large-refunds", "spec.check.count", 1),
    "default patience": edit("GateRule", "large-refunds", "spec.holdFor", "45s"),
    "default lifecycle": edit(*READ, "spec.lifecycle", "active"),
    "default protocols": edit("Catalogue", "desk", "spec.publish.as", ["mcp", "http"]),
    "no labels": edit("Catalogue", "desk", "metadata.labels", {}),
    "no stage options": edit("Pipeline", "standard", "spec.call.0.with", {}),
    "milliseconds": edit("GateRule", "large-refunds", "spec.check.timeout", "1800000ms"),
    "stage milliseconds": edit("Pipeline", "standard", "spec.call.1.with.after", "30000ms"),
    "hours": edit("TrustTier", "partner", "spec.requires.reviewedWithin", "4320h"),
    "row spaces": row_edit("read,            internal", "read,internal"),
    "row comment": added_row("# nobody reads this"),
    "row twice": added_row("g, user:ana,    role:clerk"),
}


@pytest.mark.parametrize("name", SAME)
def test_other_words_for_the_same_meaning_are_the_same_revision(name: str) -> None:
    documents, rows = json.loads(json.dumps(list(BASE.values()))), list(ROWS)
    documents = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    if name == "default inline":
        edit(*PAY, "spec.output.artifact", "text")(documents, rows)
    before = revision(documents.values(), rows)

    SAME[name](documents, rows)

    assert revision(documents.values(), rows) == before


def test_stage_options_equal_to_defaults_change_nothing() -> None:
    documents, rows = edited([])
    retry = {"use": "retry", "with": {"unlessFlags": ["writes"]}}
    documents["Pipeline", "standard"]["spec"]["call"].append(retry)
    short = revision(documents.values(), rows)

    retry["with"] |= {"attempts": 2, "causes": ["unavailable"], "delay": "200ms"}  # type: ignore[operator]  # a mapping

    assert revision(documents.values(), rows) == short


@settings(max_examples=20)
@given(st.randoms(use_true_random=False), st.integers(1, 30), st.sampled_from(["", "\n# a comment", "   "]))
def test_revision_does_not_depend_on_how_documents_are_written_down(
    chance: random.Random, files: int, comment: str
) -> None:
    documents, rows = shuffled(list(BASE.values()), chance), list(ROWS)
    chance.shuffle(documents)
    chance.shuffle(rows)

    assert revision(documents, rows, files=files, comment=comment) == REVISION


SOME = st.sets(st.sampled_from(sorted(EDITS)), max_size=3)


@settings(max_examples=30)
@given(SOME, SOME, st.randoms(use_true_random=False))
def test_revisions_are_equal_exactly_if_meanings_are(one: set[str], other: set[str], chance: random.Random) -> None:
    first, first_rows = edited(sorted(one))
    second, second_rows = edited(sorted(other, reverse=True))

    same = revision(first.values(), first_rows) == revision(
        shuffled(list(second.values()), chance), second_rows, files=3
    )

    assert same == (one == other)


def test_revision_is_that_of_the_folder_as_people_write_it() -> None:
    assert revision_at(SMALL) == REVISION


def test_revision_does_not_depend_on_the_day() -> None:
    days = [TODAY + timedelta(days=each) for each in (-30, 0, 120, 200, 400)]

    assert {revision_at(SMALL, today=day) for day in days} == {REVISION}


def test_revision_does_not_depend_on_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "deep" / "er", BASE.values(), ROWS)
    monkeypatch.chdir(tmp_path / "deep")

    assert revision_at(Path("er")) == REVISION
    assert revision_at(Path("er/configs")) == REVISION
    assert revision_at(tmp_path / "deep" / "er") == REVISION


def test_tests_and_overlays_of_other_environments_are_no_part_of_the_revision() -> None:
    documents, rows = edited([])
    documents["PolicyTest", "desk"]["spec"]["cases"].pop()
    documents["Overlay", "prod"] = {
        "apiVersion": "gateway/v1",
        "kind": "Overlay",
        "metadata": {"name": "prod", "owner": "team-a"},
        "spec": {
            "environment": "prod",
            "patches": [{"target": {"kind": "Storage", "name": "main"}, "merge": {"path": "x.db"}}],
        },
    }

    assert revision(documents.values(), rows) == REVISION
