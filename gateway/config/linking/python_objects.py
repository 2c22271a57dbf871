"""Python objects that documents name as `module:Name`: found at load, and only in packages the process allows.

An edit of a YAML file must not be able to run arbitrary code, so nothing is imported before its package is known to
be allowed.
"""

from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from inspect import isroutine
from typing import Any, Final

from gateway.governance.diagnostics import did_you_mean

OWN_PACKAGES: Final = ("gateway.examples",)
"""What is always allowed: it comes with the gateway."""

ALLOW_LIST: Final = "GATEWAY_PYTHON_PACKAGES"
_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why a name leads to nothing that can be used."""

    code: str
    message: str
    help: str | None = None


def find_object(entrypoint: str, *, packages: Collection[str]) -> Any | Unusable:
    """The object behind `module:Name`, or why there is none."""
    module_name, _, name = entrypoint.partition(":")
    if not _is_allowed(module_name, packages):
        return _not_allowed(module_name)
    try:
        module = import_module(module_name)
        found = getattr(module, name, _NOTHING)
    except (Exception, SystemExit) as error:  # the module is the author's: it may raise anything while it is imported
        return _not_imported(module_name, error)
    if found is _NOTHING:
        help = did_you_mean(name, (known for known in vars(module) if not known.startswith("_")))
        return Unusable("entrypoint-missing", f"{module_name} has no {name!r}", help)
    # What a module imports for itself is not what it offers.
    origin = found.__module__ if isinstance(found, type) or isroutine(found) else module_name
    return found if origin is None or _is_allowed(origin, packages) else _not_allowed(origin)


def _is_allowed(module: str, packages: Collection[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in (*OWN_PACKAGES, *packages))


def _not_allowed(module: str) -> Unusable:
    help = f"add {module.partition('.')[0]} to {ALLOW_LIST} if this process may run it"
    return Unusable("package-not-allowed", f"{module} is in no package that this process allows", help)


def _not_imported(module: str, error: BaseException) -> Unusable:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return Unusable("entrypoint-missing", f"there is no module {error.name}", "install it, or correct the name")
    reason = "".join(str(error).splitlines()[:1]) if isinstance(error, ImportError) else ""
    what = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return Unusable("entrypoint-missing", f"{module} cannot be imported ({what})")
