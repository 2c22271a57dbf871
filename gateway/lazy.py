"""Lazy exports: a package lists its public names once, and imports the module of a name when the name is first used.

A process therefore loads only what it needs: `gateway check` loads no database driver, and a tool that returns text
loads no parser.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_exports(package: str) -> Callable[[str], Any]:
    """Return the `__getattr__` for a package that imports its public names below `if TYPE_CHECKING:`."""
    places: dict[str, tuple[str, str]] = {}

    def __getattr__(name: str) -> Any:  # noqa: N807 - the name that Python looks for
        if not places and not name.startswith("__"):
            places.update(_read_exports(package))
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = places[name]
        value = getattr(import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__


def _read_exports(package: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each name below `if TYPE_CHECKING:` with its module and its name there."""
    source = Path(str(sys.modules[package].__file__)).read_bytes()
    for node in ast.parse(source).body:
        for statement in node.body if isinstance(node, ast.If) else ():
            if isinstance(statement, ast.ImportFrom) and statement.module is not None:
                for alias in statement.names:
                    yield alias.asname or alias.name, (statement.module, alias.name)
