"""Artifact classes: the Python class of each, its options and its query tools.

`import_object` imports Python objects that documents name as `module:Name`, only from packages that the process allows.
The package is checked before the import, so that an edit of a YAML file cannot run arbitrary code.

`link_queries` lists the query tools of each artifact class, which policies and gate rules can name.
"""

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import isroutine
from typing import Any, Final

from gateway.artifacts import InMemoryReader
from gateway.config.document_checks import BUILT_IN_ARTIFACTS
from gateway.config.kinds.classification import ArtifactClassDocument
from gateway.config.kinds.common_specs import BUILT_IN_ARTIFACT_CLASSES, UNMASKED_ARTIFACTS, yaml_name
from gateway.config.kinds.gate_rules import GateRuleDocument
from gateway.config.linking.document_index import DocumentEntry, DocumentIndex
from gateway.errors import InvalidInitialToolValue
from gateway.model import artifact_constructor_problems, glob_matches
from gateway.registries import (
    CONTENT,
    QUERY_PREFIX,
    ArtifactClass,
    DeclaredTool,
    Diagnostic,
    Query,
    Selector,
    suggest_name,
)

OWN_PACKAGES: Final = ("gateway.examples",)
"""Packages that are always allowed, because they are part of the gateway."""

ALLOWED_PACKAGES_VARIABLE: Final = "GATEWAY_PYTHON_PACKAGES"
_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class UnusableObject:
    """The reason why an object cannot be used."""

    code: str
    message: str
    help: str | None = None


def import_object(entrypoint: str, *, packages: Collection[str]) -> Any | UnusableObject:
    """Import `module:Name`; return the object, or the reason why it cannot be used."""
    module_name, _, name = entrypoint.partition(":")
    if not _is_allowed(module_name, packages):
        return _not_allowed(module_name)
    try:
        module = import_module(module_name)
        found = getattr(module, name, _NOTHING)
    except (Exception, SystemExit) as error:  # third-party modules may raise anything on import
        return _not_imported(module_name, error)
    if found is _NOTHING:
        help = suggest_name(name, (known for known in vars(module) if not known.startswith("_")))
        return UnusableObject("entrypoint-missing", f"{module_name} has no {name!r}", help)
    # An object that the module imported from a package that is not allowed stays refused.
    origin = found.__module__ if isinstance(found, type) or isroutine(found) else module_name
    return found if origin is None or _is_allowed(origin, packages) else _not_allowed(origin)


def _is_allowed(module: str, packages: Collection[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in (*OWN_PACKAGES, *packages))


def _not_allowed(module: str) -> UnusableObject:
    help = f"add {module.partition('.')[0]} to {ALLOWED_PACKAGES_VARIABLE} if this process may run its code"
    return UnusableObject("package-not-allowed", f"the package of {module} is not allowed in this process", help)


def _not_imported(module: str, error: BaseException) -> UnusableObject:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return UnusableObject(
            "entrypoint-missing", f"there is no module {error.name}", "install the package, or correct the name"
        )
    reason = "".join(str(error).splitlines()[:1]) if isinstance(error, ImportError) else ""
    what = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return UnusableObject("entrypoint-missing", f"{module} cannot be imported ({what})")


_PYTHON_SOURCE: Final = "gateway.artifacts.formats.source_code.source_artifact:SpooledPythonArtifact"
_CAPITAL: Final = re.compile(r"(?<!^)([A-Z])")


def link_artifacts(
    entries: DocumentIndex, *, packages: Collection[str]
) -> tuple[dict[str, ArtifactClass], list[Diagnostic]]:
    linked: dict[str, ArtifactClass] = {}
    problems: list[Diagnostic] = []
    for name, entry in entries.of(ArtifactClassDocument).items():
        constructor = _constructor(entry, packages)
        if isinstance(constructor, Diagnostic):
            problems.append(constructor)
            continue
        options = _options(entry)
        problems += _check_options(entry, constructor, options)
        problems += _check_queries(entry, constructor)
        problems += _check_redact(entry)
        linked[name] = _artifact_class(entry, constructor, options)
    return linked, problems


def find_built_in_class(base: str, options: Mapping[str, Any]) -> type:
    """Return the class of a built-in base. Only the base `source` has two classes."""
    path = (
        _PYTHON_SOURCE if base == "source" and options.get("language") == "python" else BUILT_IN_ARTIFACT_CLASSES[base]
    )
    module, _, name = path.partition(":")
    found: type = getattr(import_module(module), name)
    return found


def _constructor(entry: DocumentEntry[ArtifactClassDocument], packages: Collection[str]) -> type | Diagnostic:
    spec = entry.document.spec
    if spec.class_ is None:
        return find_built_in_class(spec.base or "text", spec.options)
    found = import_object(spec.class_, packages=packages)
    if isinstance(found, UnusableObject):
        return entry.problem(found.code, found.message, ("spec", "class"), help=found.help)
    problems = artifact_constructor_problems(lambda: found)
    if problems or not isinstance(found, type):
        what = f"{spec.class_} is not an artifact class ({InvalidInitialToolValue.code})"
        help = "derive it from gateway.SpooledArtifact, or implement the seven base methods"
        return entry.problem("not-an-artifact-class", what, ("spec", "class"), help=help)
    return found


def _options(entry: DocumentEntry[ArtifactClassDocument]) -> dict[str, Any]:
    """Return the options for the constructor, by their YAML keys."""
    spec = entry.document.spec
    chose_class = spec.base == "source" and spec.options.get("language") == "python"
    return {key: value for key, value in spec.options.items() if not (chose_class and key == "language")}


def _snake_case(key: str) -> str:
    return _CAPITAL.sub(r"_\1", key).lower()


def _check_options(
    entry: DocumentEntry[ArtifactClassDocument], constructor: type, options: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """Report unknown options by the constructor's signature, and wrong values by constructing an empty artifact."""
    known = _list_option_names(constructor)
    unknown = [key for key in options if known is not None and _snake_case(key) not in known]
    for key in unknown:
        choices = [yaml_name(name) for name in known or ()]
        help = suggest_name(key, choices) or (f"options here: {', '.join(choices)}" if choices else "it has no options")
        position = entry.source.key_position(("spec", "options", key))
        yield Diagnostic("bad-options", f"{_class_label(entry)} has no option {key!r}", position, help=help)
    if unknown or not options:
        return
    if reason := _find_refusal(constructor, options):
        message = f"{_class_label(entry)} refuses its options: {reason}"
        yield entry.problem("bad-options", message, ("spec", "options", *_find_wrong_option(constructor, options)))


def _find_wrong_option(constructor: type, options: Mapping[str, Any]) -> list[str]:
    """Return the one option whose removal makes the others valid, or an empty list."""
    rests = {key: {other: value for other, value in options.items() if other != key} for key in options}
    found = [key for key, rest in rests.items() if _find_refusal(constructor, rest) is None]
    return found if len(found) == 1 else []


def _list_option_names(constructor: type) -> list[str] | None:
    """Return the constructor's options, or `None` if it takes any or its signature is unknown."""
    try:
        _, *parameters = inspect.signature(constructor).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL]


def _find_refusal(constructor: type, options: Mapping[str, Any]) -> str | None:
    try:
        constructor(InMemoryReader(b""), **{_snake_case(key): value for key, value in options.items()})
    except Exception as error:  # third-party classes may raise anything to refuse options
        return "".join(str(error).splitlines()[:1]) or type(error).__name__
    return None


def _class_label(entry: DocumentEntry[ArtifactClassDocument]) -> str:
    """Return the name that the document uses for the class."""
    spec = entry.document.spec
    return f"base {spec.base}" if spec.class_ is None else spec.class_


def _check_queries(entry: DocumentEntry[ArtifactClassDocument], constructor: type) -> Iterator[Diagnostic]:
    queries = entry.document.spec.queries
    if queries == "all":
        return
    methods = getattr(constructor, "effective_methods", None)
    known = [each.method for each in methods()] if callable(methods) else []
    for index, query in enumerate(queries):
        if query not in known:
            help = suggest_name(query, known) or (f"queries here: {', '.join(known)}" if known else "it has no queries")
            message = f"{_class_label(entry)} has no query {query!r}"
            yield entry.problem("unknown-query", message, ("spec", "queries", index), help=help)


def _check_redact(entry: DocumentEntry[ArtifactClassDocument]) -> Iterator[Diagnostic]:
    """Warn if `redact` is set for a base that cannot be masked in parts, because nothing of it is shown then."""
    spec = entry.document.spec
    if spec.redact and spec.base in UNMASKED_ARTIFACTS:
        message = f"results of base {spec.base} cannot be masked in parts, so they are hidden completely"
        help = "use base json or yaml, or remove redact"
        yield entry.problem("redact-hides", message, ("spec", "redact", 0), help=help, severity="warning")


def _artifact_class(
    entry: DocumentEntry[ArtifactClassDocument], constructor: type, options: Mapping[str, Any]
) -> ArtifactClass:
    spec = entry.document.spec
    return ArtifactClass(
        entry.name,
        constructor,
        entry.position,
        options={_snake_case(key): value for key, value in options.items()},
        queries=None if spec.queries == "all" else frozenset(spec.queries),
        sensitivity=spec.sensitivity,
        max_size=spec.max_size,
        inline_below=spec.inline_below,
        retain=spec.retain,
        redact=spec.redact,
        max_tier=spec.flow.max_tier if spec.flow else None,
        blocked_by=frozenset(spec.flow.blocked_by) if spec.flow else frozenset(),
        capture_arguments=spec.capture.arguments if spec.capture else "values",
        capture_results=spec.capture.results if spec.capture else "values",
    )


Schemas = Mapping[str, Mapping[str, Any]]
"""Input schemas by the name of the query tool."""


def link_queries(tools: Iterable[DeclaredTool], artifacts: Mapping[str, ArtifactClass]) -> dict[str, Schemas]:
    """Return the query schemas of every class that a tool returns, except classes with errors."""
    names = sorted({tool.artifact for tool in tools})
    return {name: schemas_of(name, artifacts) for name in names if name in artifacts or name in BUILT_IN_ARTIFACTS}


def schemas_of(name: str, artifacts: Mapping[str, ArtifactClass]) -> Schemas:
    declared = artifacts.get(name)
    constructor: Any = find_built_in_class(name, {}) if declared is None else declared.constructor
    offered = None if declared is None else declared.queries
    methods: Sequence[Any] = getattr(constructor, "effective_methods", tuple)()
    return {each.name: each.template.describe() for each in methods if offered is None or each.method in offered}


def list_query_names(entries: DocumentIndex, *, packages: Collection[str]) -> frozenset[str]:
    """Return every query name that a gate rule may use. Classes are linked only if a rule names a query."""
    rules = entries.of(GateRuleDocument).values()
    named = [name for rule in rules for name in rule.document.spec.match.tools if name.startswith(QUERY_PREFIX)]
    if all("*" in name for name in named):
        return frozenset()
    artifacts, _ = link_artifacts(entries, packages=packages)
    return frozenset({CONTENT}.union(*(schemas_of(name, artifacts) for name in {*artifacts, *BUILT_IN_ARTIFACTS})))


def find_queries(match: Selector, tools: Iterable[DeclaredTool], queries: Mapping[str, Schemas]) -> Iterator[Query]:
    """Yield the queries that a rule names."""
    patterns = [pattern for pattern in match.tools if pattern.startswith(QUERY_PREFIX)]
    if not patterns:
        return
    for tool in tools:
        known = queries.get(tool.artifact, {})
        for name in (*known, CONTENT):
            if any(glob_matches(name, pattern) for pattern in patterns):
                query = Query(name, tool, tool.artifact, known.get(name))
                if match.matches(query.to_governed):
                    yield query
