"""The public names: sorted, complete, and none by accident."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gateway


def test_exported_names_are_sorted_and_unique() -> None:
    constants = [name for name in gateway.__all__ if name.isupper()]
    classes = [name for name in gateway.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in gateway.__all__ if name[0].islower()]

    assert gateway.__all__ == [*sorted(constants), *sorted(classes), *sorted(functions)]
    assert len(set(gateway.__all__)) == len(gateway.__all__)


def test_every_name_comes_from_where_type_checkers_find_it() -> None:
    tree = ast.parse(Path(gateway.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gateway.")
        for alias in node.names
    }

    del imported["lazy_exports"]
    found = {name: getattr(gateway, name) for name in gateway.__all__}
    assert found == {name: getattr(sys.modules[str(module)], original) for name, (module, original) in imported.items()}


def test_importing_the_package_loads_nothing_but_what_loads_names() -> None:
    script = "import sys, gateway; print([name for name in sys.modules if name.startswith('gateway.')])"

    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "['gateway.lazy']\n"


def test_exported_names_are_listed_and_others_are_missing() -> None:
    assert set(gateway.__all__) <= set(dir(gateway))
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        gateway.Nothing  # type: ignore[attr-defined] # noqa: B018 - reading it is the test


def test_names_that_others_rely_on_are_where_they_look_for_them() -> None:
    from gateway.model.primitives.canonical_json import call_id, canonical

    assert canonical({"b": 1, "a": [1.0, None]}) == '{"a":[1,null],"b":1}'
    assert call_id("echo", {}) == "28535312633cb507c5892dc9480230e55c182e23fa7f5912a5560bb6644d50b9"
    assert (gateway.canonical, gateway.call_id) == (canonical, call_id)
