"""Python objects that documents name as `module:Name`: found at load, and only in packages the process allows.

An edit of a YAML file must not be able to run arbitrary code, so nothing is imported before its package is known to
be allowed.
"""

from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

OWN_PACKAGES: Final = ("gateway.examples",)
"""What is always allowed: it comes with the gateway."""

ALLOW_LIST: Final = "GATEWAY_PYTHON_PACKAGES"


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why a name leads to nothing that can be used."""

    code: str
    message: str
    help: str | None = None


def find_object(entrypoint: str, *, packages: Collection[str]) -> Any | Unusable:
    """The object behind `module:Name`, or why there is none."""
    module_name, _, name = entrypoint.partition(":")
    if not any(
        module_name == package or module_name.startswith(f"{package}.") for package in (*OWN_PACKAGES, *packages)
    ):
        help = f"add {module_name.partition('.')[0]} to {ALLOW_LIST} if this process may run it"
        return Unusable("package-not-allowed", f"{module_name} is in no package that this process allows", help)
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:  # the module is the author's: it may raise anything while it is imported
        reason = f"{type(error).__name__}: {error}" if isinstance(error, ImportError) else type(error).__name__
        return Unusable("entrypoint-missing", f"{module_name} cannot be imported ({reason})")
    if not hasattr(module, name):
        return Unusable("entrypoint-missing", f"{module_name} has no {name!r}")
    return getattr(module, name)
