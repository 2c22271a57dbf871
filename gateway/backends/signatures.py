"""Whether a function can be called with what an input schema lets through, found before the first call."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any, Final

CONTEXT: Final = frozenset({"args", "ctx", "meta"})
"""A function with exactly these parameters gets the whole call instead of single arguments."""

_ANY_NAME: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def takes_context(function: Callable[..., Any]) -> bool:
    return set(inspect.signature(function).parameters) == CONTEXT


def by_name(signature: Signature) -> frozenset[str] | None:
    """All parameters, if each of them can be given by its name."""
    parameters = signature.parameters.values()
    return frozenset(signature.parameters) if all(parameter.kind in _ANY_NAME for parameter in parameters) else None


def problems_of(function: Callable[..., Any], schema: Mapping[str, Any]) -> list[str]:
    """Where the function's parameters and the schema's properties do not fit; empty if they do."""
    try:
        if takes_context(function):
            return []
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ["the parameters of the function cannot be read"]
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    always = {name for name, property in known.items() if isinstance(property, Mapping) and "default" in property}
    always.update(schema.get("required") or ())
    found = [problem for parameter in parameters.values() for problem in _problems(parameter, known, always=always)]
    if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        found += [f"the function takes no {name!r}" for name in known if name not in parameters]
    return found


def process_problems(function: Callable[..., Any]) -> list[str]:
    """Why another process could not find and call this function; empty if it can."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__" or not name.isidentifier():
        return ["a function for another process stands at the top of a module that can be imported"]
    if getattr(import_module(module), name, None) is not function:
        return [f"{module}:{name} is not this function"]
    if takes_context(function):
        return ["a function that takes args, ctx and meta cannot run in another process"]
    return []


def _problems(parameter: Parameter, known: Mapping[str, Any], *, always: set[str]) -> list[str]:
    name = parameter.name
    if parameter.kind is Parameter.POSITIONAL_ONLY:
        return [f"parameter {name!r} cannot be given by name"]
    if parameter.kind not in _ANY_NAME or parameter.default is not Parameter.empty:
        return []
    if name not in known:
        return [f"parameter {name!r} is not in the input schema"]
    return [] if name in always else [f"parameter {name!r} has no default, and the input schema does not require it"]
