"""The CEL interpreter without its package: importing that would load a terminal application, a quarter of a second.

Only the compiled extension inside is loaded; it needs nothing of what stands around it.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, Final


def _extension() -> Any:
    package = find_spec("cel")
    found = PathFinder.find_spec("cel.cel", package.submodule_search_locations if package else None)
    if found is None or found.loader is None:
        raise ImportError("common-expression-language is not installed")
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


CEL: Final[Any] = _extension()
