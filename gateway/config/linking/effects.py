"""What documents say of the effects of tools, and where that is missing or at odds with an upstream or a method.

The most specific declaration counts: a Tool document, else the best pattern of `import.tools`, else `import.trust`.
Without one, the method of an OpenAPI operation implies the effects, and those of every other tool are unknown.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.config.linking.entries import Entry
from gateway.config.nodes import Path
from gateway.config.specs.backends import HttpBackend, OpenApiBackend
from gateway.config.specs.tools import ToolDocument
from gateway.config.specs.upstreams import UpstreamDocument, UpstreamSpec
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.effects import (
    Proposal,
    claimed_flags,
    claims_repeats_matter,
    contradicts_method,
    in_effect_order,
    method_flags,
    propose_flags,
)
from gateway.governance.globs import glob_matches
from gateway.governance.imports import ImportedDefinition
from gateway.governance.trust import EffectiveTrust
from gateway.openapi.importing import REQUEST

_FLAGS: Final = ("spec", "trust", "flags")
_IMPORT_FLAGS: Final = ("spec", "import", "trust", "flags")
_IMPORT_TOOLS: Final = ("spec", "import", "tools")
_MOST_TOLD: Final = 8


@dataclass(frozen=True, slots=True)
class StatedEffects:
    """What is said of a tool's effects before its tier has a say. `flags` is `None` if nobody says anything."""

    flags: frozenset[str] | None = None
    written: tuple[tuple[str, Path], ...] = ()
    """Flags that stand in a document, and where."""
    place: Path | None = None
    """Where the list of them stands."""
    is_implied: bool = False
    claims: frozenset[str] = frozenset()
    denies_repeats: bool = False
    """Whether the upstream says that calling its tool twice is not like calling it once."""
    method: str | None = None


def effects_of_document(entry: Entry[ToolDocument], definition: ImportedDefinition | None) -> StatedEffects:
    """`definition` is what the upstream of a document that publishes one of its tools brings."""
    spec = entry.document.spec
    method = _method_of(spec.backend, definition)
    is_operation = isinstance(spec.backend, OpenApiBackend)
    if is_operation and method is not None:
        stated = StatedEffects(method_flags(method), is_implied=True, method=method)
    else:  # what a definition of an OpenAPI operation has for annotations is our own
        annotations = {} if definition is None or is_operation else definition.annotations
        denies_repeats = claims_repeats_matter(annotations)
        stated = StatedEffects(claims=claimed_flags(annotations), denies_repeats=denies_repeats, method=method)
    given = spec.trust.flags if spec.trust is not None else None
    if given is None:
        return stated
    written = _written(given, _FLAGS)
    return replace(stated, flags=frozenset(given), is_implied=False, written=written, place=_FLAGS)


def effects_of_import(spec: UpstreamSpec, definition: ImportedDefinition) -> StatedEffects:
    """For a tool that no document publishes. What is said of all tools at once takes nothing away from a method."""
    is_openapi = spec.transport.type == "openapi"
    method = operation_method(definition) if is_openapi else None
    claims = frozenset[str]() if is_openapi else claimed_flags(definition.annotations)
    best = _best_patterns(spec.import_.tools, definition.name)
    if best:
        written = [
            each for name in best for each in _written(spec.import_.tools[name].flags, (*_IMPORT_TOOLS, name, "flags"))
        ]
        place = (*_IMPORT_TOOLS, best[0], "flags")
        return StatedEffects(
            frozenset(flag for flag, _ in written), tuple(written), place, claims=claims, method=method
        )
    implied = None if method is None else method_flags(method)
    given = spec.import_.trust.flags if spec.import_.trust is not None else None
    if given is None:
        return StatedEffects(implied, is_implied=implied is not None, claims=claims, method=method)
    flags = frozenset(given) | (implied or frozenset())
    return StatedEffects(flags, _written(given, _IMPORT_FLAGS), _IMPORT_FLAGS, claims=claims, method=method)


def effects_of_terms(spec: UpstreamSpec) -> StatedEffects:
    """For prompts and resources, which are only read, and for terms that have let nothing in yet."""
    trust = spec.import_.trust
    given = (trust.flags if trust is not None else None) or ()
    return StatedEffects(frozenset(given), _written(given, _IMPORT_FLAGS), _IMPORT_FLAGS)


def operation_method(definition: ImportedDefinition) -> str:
    """The method of an OpenAPI operation; an empty text, which counts as one that writes, if it is not told."""
    request = (definition.given.get("_meta") or {}).get(REQUEST)
    return str(request.get("method", "")) if isinstance(request, Mapping) else ""


def document_problems(
    entry: Entry[ToolDocument],
    stated: StatedEffects,
    trust: EffectiveTrust,
    definition: ImportedDefinition | None,
) -> Iterator[Diagnostic]:
    """Effects that a document does not declare, or declares against its method or its upstream's own word."""
    if stated.flags is None:
        name, annotations = (entry.name, {}) if definition is None else (definition.name, definition.annotations)
        guess = propose_flags(name, annotations=annotations, method=stated.method)
        message = f"the effects of {entry.name} are unknown, so it counts as writes, destructive and egress"
        help = f"declare them: trust: {{flags: [{', '.join(guess.flags)}]}}, if that is true ({guess.because})"
        place = ("spec", "trust") if entry.has("spec", "trust") else ("metadata", "name")
        yield entry.problem("effects-undeclared", message, place, help=help, severity="warning")
        return
    if trust.claimed:
        message = f"the flags leave out what its server says of the tool: {_listed(trust.claimed)}"
        help = "add them: they count already, because a server's own warning does"
        yield entry.problem("effects-contradicted", message, _FLAGS, help=help, severity="warning")
    if entry.document.spec.idempotent and stated.denies_repeats:
        message = "its server says that calling the tool twice is not like calling it once"
        help = "remove idempotent: true; failed calls are not tried again while the server says so"
        place = ("spec", "idempotent")
        yield entry.problem("effects-contradicted", message, place, help=help, severity="warning")
    if stated.place is not None and stated.method is not None and contradicts_method(stated.method, trust.flags):
        message = f"the flags say that nothing is changed, and the method is {stated.method}"
        help = "add writes or destructive, or use another method"
        yield entry.problem("effects-contradicted", message, _FLAGS, help=help, severity="warning")


def import_problems(
    entry: Entry[UpstreamDocument], imported: Sequence[tuple[ImportedDefinition, StatedEffects, EffectiveTrust]]
) -> Iterator[Diagnostic]:
    """The same for imported tools, in one problem for many of them, and patterns that fit no tool."""
    unknown = [definition for definition, stated, _ in imported if stated.flags is None]
    if unknown:
        yield _undeclared(entry, unknown)
    claimed: dict[Path, list[str]] = {}
    by_method: dict[Path, list[str]] = {}
    for definition, stated, trust in imported:
        if stated.place is None:
            continue
        if trust.claimed:
            claimed.setdefault(stated.place, []).append(f"{definition.name} ({_listed(trust.claimed)})")
        if stated.method is not None and contradicts_method(stated.method, trust.flags):
            by_method.setdefault(stated.place, []).append(f"{definition.name} ({stated.method})")
    for place, tools in claimed.items():
        message = f"the flags leave out what the server says of its tools: {_shortened(tools)}"
        help = "add them in import.tools: they count already, because a server's own warning does"
        yield entry.problem("effects-contradicted", message, place, help=help, severity="warning")
    for place, tools in by_method.items():
        message = (
            f"the flags say that nothing is changed, and the methods of operations say otherwise: {_shortened(tools)}"
        )
        help = "add writes or destructive to their flags"
        yield entry.problem("effects-contradicted", message, place, help=help, severity="warning")


def idle_patterns(entry: Entry[UpstreamDocument], names: Collection[str]) -> Iterator[Diagnostic]:
    """Patterns of `import.tools` that fit none of the tools that the upstream has."""
    for pattern in entry.document.spec.import_.tools if names else ():
        if not any(glob_matches(name, pattern) for name in names):
            message = f"no tool of the upstream is called {pattern!r}, so the flags count for nothing"
            place = (*_IMPORT_TOOLS, pattern)
            yield entry.problem("idle-import", message, place, help="correct or remove it", severity="warning")


def proposals_for(spec: UpstreamSpec, definitions: Iterable[ImportedDefinition]) -> list[Proposal]:
    """Flags that a reviewer could begin with, for tools whose effects nobody declares."""
    return [
        propose_flags(each.name, annotations=each.annotations)
        for each in definitions
        if effects_of_import(spec, each).flags is None
    ]


def _undeclared(entry: Entry[UpstreamDocument], unknown: Sequence[ImportedDefinition]) -> Diagnostic:
    guesses = proposals_for(entry.document.spec, unknown[:_MOST_TOLD])
    count = len(unknown)
    what = f"the effects of {count} imported tool{'' if count == 1 else 's'} are unknown"
    message = f"{what}: {_shortened([each.name for each in unknown])}; each counts as writes, destructive and egress"
    block = f"tools: {{{', '.join(each.line for each in guesses)}}}"
    more = "; gateway lock prints the others" if count > len(guesses) else ""
    help = f"declare them in spec.import, after a review of this proposal: {block}{more}"
    place = ("spec", "import", "trust") if entry.has("spec", "import", "trust") else ("spec", "import")
    return entry.problem("effects-undeclared", message, place, help=help, severity="warning")


def _method_of(backend: Any, definition: ImportedDefinition | None) -> str | None:
    if isinstance(backend, HttpBackend):
        return backend.method
    return operation_method(definition) if isinstance(backend, OpenApiBackend) and definition is not None else None


def _best_patterns(patterns: Iterable[str], name: str) -> list[str]:
    """The name itself, or the patterns with the most letters that fit; several of them count together."""
    fitting = [each for each in patterns if glob_matches(name, each)]
    if name in fitting:
        return [name]
    most = max((len(each.replace("*", "")) for each in fitting), default=0)
    return [each for each in fitting if len(each.replace("*", "")) == most]


def _written(flags: Sequence[str], place: Path) -> tuple[tuple[str, Path], ...]:
    return tuple((flag, (*place, index)) for index, flag in enumerate(flags))


def _listed(flags: Iterable[str]) -> str:
    return ", ".join(in_effect_order(flags))


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
    return ", ".join(names[:_MOST_TOLD]) + more
