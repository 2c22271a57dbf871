"""Artifact classes: the Python class behind each, with options and queries that it really has."""

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import Any, Final

from gateway.config.linking.entries import Entries, Entry
from gateway.config.linking.python_objects import Unusable, find_object
from gateway.config.specs.artifacts import ArtifactClassDocument
from gateway.config.specs.base import yaml_name
from gateway.core.spool import InMemoryReader
from gateway.core.tools import artifact_constructor_problems
from gateway.errors import InvalidInitialToolValue
from gateway.governance.diagnostics import Diagnostic, did_you_mean
from gateway.snapshot import ArtifactClass

BUILT_IN: Final[Mapping[str, str]] = {
    "text": "gateway.core.artifacts:SpooledArtifact",
    "json": "gateway.formats.jsondoc:SpooledJsonArtifact",
    "markdown": "gateway.formats.markdown:SpooledMarkdownArtifact",
    "yaml": "gateway.formats.yamldoc:SpooledYamlArtifact",
    "xml": "gateway.formats.xmldoc:SpooledXmlArtifact",
    "toon": "gateway.formats.toon:SpooledToonArtifact",
    "source": "gateway.formats.ecmascript:SpooledEcmascriptArtifact",
}
_NOT_MASKED: Final = frozenset({"markdown", "xml", "toon", "source"})
_PYTHON_SOURCE: Final = "gateway.formats.python_source:SpooledPythonArtifact"
_CAPITAL: Final = re.compile(r"(?<!^)([A-Z])")


def link_artifacts(entries: Entries, *, packages: Collection[str]) -> tuple[dict[str, ArtifactClass], list[Diagnostic]]:
    linked: dict[str, ArtifactClass] = {}
    problems: list[Diagnostic] = []
    for name, entry in entries.of(ArtifactClassDocument).items():
        constructor = _constructor(entry, packages)
        if isinstance(constructor, Diagnostic):
            problems.append(constructor)
            continue
        options = _options(entry)
        problems += _bad_options(entry, constructor, options)
        problems += _unknown_queries(entry, constructor)
        problems += _hidden(entry)
        linked[name] = _artifact_class(entry, constructor, options)
    return linked, problems


def built_in(base: str, options: Mapping[str, Any]) -> type:
    """The class of a base. Python source is the one base with two classes."""
    path = _PYTHON_SOURCE if base == "source" and options.get("language") == "python" else BUILT_IN[base]
    module, _, name = path.partition(":")
    found: type = getattr(import_module(module), name)
    return found


def _constructor(entry: Entry[ArtifactClassDocument], packages: Collection[str]) -> type | Diagnostic:
    spec = entry.document.spec
    if spec.class_ is None:
        return built_in(spec.base or "text", spec.options)
    found = find_object(spec.class_, packages=packages)
    if isinstance(found, Unusable):
        return entry.problem(found.code, found.message, ("spec", "class"), help=found.help)
    problems = artifact_constructor_problems(lambda: found)
    if problems or not isinstance(found, type):
        what = f"{spec.class_} is not an artifact class ({InvalidInitialToolValue.code})"
        help = "derive it from gateway.SpooledArtifact, or give it the seven base methods"
        return entry.problem("not-an-artifact-class", what, ("spec", "class"), help=help)
    return found


def _options(entry: Entry[ArtifactClassDocument]) -> dict[str, Any]:
    """What the constructor is given, by the keys as written."""
    spec = entry.document.spec
    chose_class = spec.base == "source" and spec.options.get("language") == "python"
    return {key: value for key, value in spec.options.items() if not (chose_class and key == "language")}


def _snake_case(key: str) -> str:
    return _CAPITAL.sub(r"_\1", key).lower()


def _bad_options(
    entry: Entry[ArtifactClassDocument], constructor: type, options: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    """Unknown ones by the constructor's signature, wrong values by trying the constructor on an empty text."""
    known = _options_of(constructor)
    unknown = [key for key in options if known is not None and _snake_case(key) not in known]
    for key in unknown:
        choices = [yaml_name(name) for name in known or ()]
        help = did_you_mean(key, choices) or (f"options here: {', '.join(choices)}" if choices else "it has none")
        position = entry.source.key_position(("spec", "options", key))
        yield Diagnostic("bad-options", f"{_called(entry)} has no option {key!r}", position, help=help)
    if unknown or not options:
        return
    if reason := _refusal(constructor, options):
        message = f"{_called(entry)} refuses its options: {reason}"
        yield entry.problem("bad-options", message, ("spec", "options", *_at_fault(constructor, options)))


def _at_fault(constructor: type, options: Mapping[str, Any]) -> list[str]:
    """The one option without which the others are taken, if there is one."""
    rests = {key: {other: value for other, value in options.items() if other != key} for key in options}
    found = [key for key, rest in rests.items() if _refusal(constructor, rest) is None]
    return found if len(found) == 1 else []


def _options_of(constructor: type) -> list[str] | None:
    """What it takes besides what it reads; `None` if it takes anything, or does not say."""
    try:
        _, *parameters = inspect.signature(constructor).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL]


def _refusal(constructor: type, options: Mapping[str, Any]) -> str | None:
    try:
        constructor(InMemoryReader(b""), **{_snake_case(key): value for key, value in options.items()})
    except Exception as error:  # the class may be the author's: whatever it raises, it does not take the options
        return "".join(str(error).splitlines()[:1]) or type(error).__name__
    return None


def _called(entry: Entry[ArtifactClassDocument]) -> str:
    """What the document's author calls the class."""
    spec = entry.document.spec
    return f"base {spec.base}" if spec.class_ is None else spec.class_


def _unknown_queries(entry: Entry[ArtifactClassDocument], constructor: type) -> Iterator[Diagnostic]:
    queries = entry.document.spec.queries
    if queries == "all":
        return
    methods = getattr(constructor, "effective_methods", None)
    known = [each.method for each in methods()] if callable(methods) else []
    for index, query in enumerate(queries):
        if query not in known:
            help = did_you_mean(query, known) or (f"queries here: {', '.join(known)}" if known else "it has none")
            message = f"{_called(entry)} has no query {query!r}"
            yield entry.problem("unknown-query", message, ("spec", "queries", index), help=help)


def _hidden(entry: Entry[ArtifactClassDocument]) -> Iterator[Diagnostic]:
    """What cannot be masked in parts is not shown at all."""
    spec = entry.document.spec
    if spec.redact and spec.base in _NOT_MASKED:
        message = f"results of base {spec.base} cannot be masked in parts, so nothing of them is shown"
        help = "use base json or yaml, or mask nothing"
        yield entry.problem("redact-hides", message, ("spec", "redact", 0), help=help, severity="warning")


def _artifact_class(
    entry: Entry[ArtifactClassDocument], constructor: type, options: Mapping[str, Any]
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
