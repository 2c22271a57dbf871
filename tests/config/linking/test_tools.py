"""Tools: their state around the last day, the code behind them, and their fields in the snapshot."""

import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.registries.snapshot import DeclaredTool
from tests.config.linking.projects import (
    TODAY,
    catalogue,
    linked,
    list_codes,
    only_tool,
    problem,
    snapshot_of,
    tool,
    upstream,
)

LAST_DAY = TODAY


def deprecated(**deprecation: Any) -> str:
    given = {"since": "2026-01-01", "removeAfter": LAST_DAY.isoformat(), "use": "order_find", **deprecation}
    kept = {key: value for key, value in given.items() if value is not None}
    return tool("order_read", lifecycle="deprecated", deprecation=kept)


def read_on(today: date) -> DeclaredTool | None:
    found = linked(deprecated(), tool("order_find"), catalogue(), today=today)
    return found.snapshot.tools["order_read"] if found.snapshot else None


def test_deprecated_tool_works_to_the_end_of_its_last_day() -> None:
    before, on, after = (read_on(LAST_DAY + timedelta(days=days)) for days in (-1, 0, 1))

    assert before is not None
    assert on is not None
    assert on.is_callable_on(LAST_DAY)
    assert not on.is_callable_on(LAST_DAY + timedelta(days=1))
    assert after is None


def test_day_after_the_last_one_is_an_error_at_the_date() -> None:
    found = linked(deprecated(), tool("order_find"), catalogue(), today=LAST_DAY + timedelta(days=1))

    assert list_codes(found) == ["past-removal"]
    assert problem(found, "past-removal").position.width == len('"2026-11-16"')


@pytest.mark.parametrize(
    ("use", "replacement", "codes"),
    [
        ("order_find", "active", []),
        ("order_find", "draft", ["no-replacement"]),
        ("order_find", "retired", ["no-replacement"]),
        ("order_read", "active", ["no-replacement"]),
        ("order_fnid", "active", ["unknown-reference"]),
        (None, "active", ["no-replacement"]),
    ],
    ids=["in use", "not yet", "no more", "itself", "nothing", "none"],
)
def test_replacement_can_be_used(use: str | None, replacement: str, codes: list[str]) -> None:
    assert list_codes(linked(deprecated(use=use), tool("order_find", lifecycle=replacement), catalogue())) == codes


@pytest.mark.parametrize(("lifecycle", "in_use"), [("draft", False), ("active", True), ("retired", False)])
def test_life_of_a_tool(lifecycle: str, in_use: bool) -> None:
    assert only_tool(linked(tool(lifecycle=lifecycle))).is_callable_on(TODAY) is in_use


def test_tool_carries_what_its_document_declares() -> None:
    spec: dict[str, Any] = {
        "meta": {"rbac": {"scopes": ["a"]}},
        "ephemeral": True,
        "onCollision": "keep",
        "output": {"inline": False},
    }

    carried = only_tool(linked(tool(labels={"system": "x"}, **spec)))

    assert carried.labels == {"system": "x"}
    assert carried.meta == {"rbac": {"scopes": ["a"]}}
    assert (carried.ephemeral, carried.on_collision, carried.inline) == (True, "keep", False)
    assert (carried.artifact, carried.backend, carried.owner, carried.version) == ("text", "http", "team-a", "1.0.0")


def test_schema_is_kept_as_it_is_enforced() -> None:
    carried = only_tool(linked(tool()))

    assert carried.input_schema is not None
    assert carried.input_schema["additionalProperties"] is False


def test_schema_of_an_upstream_s_tool_may_be_unknown() -> None:
    mine = tool("pages", backend={"type": "mcp", "upstream": "wiki", "tool": "open"})
    bare = mine.replace('"input": {"schema": {"type": "object", "properties": {"order": {"type": "string"}}}}, ', "")

    carried = snapshot_of(linked(bare, upstream(), catalogue())).tools["pages"]

    assert carried.input_schema is None
    assert (carried.upstream, carried.remote_name, carried.is_imported) == ("wiki", "open", False)


FINE = """
from functools import partial
from os import getcwd

NUMBER = 5

def find(): ...

bound = partial(find)
"""
MODULES = {
    "fine.py": FINE,
    "exits.py": "raise SystemExit(3)\n",
    "raises.py": "raise RuntimeError('the password is hunter2')\n",
    "lacks.py": "import nothing_of_that_name\n",
    "renames.py": "from acme_linking.fine import nobody\n",
    "lazy.py": "def __getattr__(name):\n    raise RuntimeError('no')\n",
}


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "acme_linking"
    package.mkdir()
    (package / "__init__.py").touch()
    for name, text in MODULES.items():
        (package / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [each for each in sys.modules if each.partition(".")[0] == package.name]:
        del sys.modules[name]  # their folder is deleted with the test


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("entrypoint", "code", "words"),
    [
        ("acme_linking.fine:find", None, ""),
        ("acme_linking.fine:bound", None, ""),
        ("acme_linking.fine:fnid", "entrypoint-missing", "acme_linking.fine has no 'fnid'"),
        ("acme_linking.fine:NUMBER", "entrypoint-missing", "acme_linking.fine:NUMBER is not a function"),
        ("acme_linking.fine:getcwd", "package-not-allowed", "the package of posix is not allowed in this process"),
        ("acme_linking.gone:find", "entrypoint-missing", "there is no module acme_linking.gone"),
        ("acme_linking.exits:find", "entrypoint-missing", "acme_linking.exits cannot be imported (SystemExit)"),
        ("acme_linking.raises:find", "entrypoint-missing", "acme_linking.raises cannot be imported (RuntimeError)"),
        (
            "acme_linking.lacks:find",
            "entrypoint-missing",
            "acme_linking.lacks cannot be imported (ModuleNotFoundError: No module named 'nothing_of_that_name')",
        ),
        ("acme_linking.lazy:find", "entrypoint-missing", "acme_linking.lazy cannot be imported (RuntimeError)"),
        (
            "acme_linkings.fine:find",
            "package-not-allowed",
            "the package of acme_linkings.fine is not allowed in this process",
        ),
        ("os:system", "package-not-allowed", "the package of os is not allowed in this process"),
    ],
)
def test_python_function_is_found_at_load(entrypoint: str, code: str | None, words: str) -> None:
    text = tool(backend={"type": "python", "entrypoint": entrypoint})

    found = linked(text, catalogue(), packages=["acme_linking"])

    assert list_codes(found) == ([code] if code else [])
    assert [each.message for each in found.diagnostics] == ([words] if words else [])
    assert all(each.position.width == len(entrypoint) + 2 for each in found.diagnostics)


def test_module_of_another_package_is_not_even_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_unallowed.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    linked(tool(backend={"type": "python", "entrypoint": "acme_unallowed:find"}), packages=["acme"])

    assert not (tmp_path / "ran").exists()
