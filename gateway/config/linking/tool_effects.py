"""Effects that tools declare; warns if one is missing, or contradicts the upstream or the HTTP method.

The most specific declaration applies: a Tool document, else the best pattern of `import.tools`, else `import.trust`.
Without one, the method of an OpenAPI operation implies the effects, and the effects of other tools are unknown.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.backends import REQUEST_META
from gateway.config.kinds.tools import HttpBackendSpec, OpenApiBackendSpec, ToolDocument
from gateway.config.kinds.upstreams import UpstreamDocument, UpstreamSpec
from gateway.config.linking.document_index import DocumentEntry
from gateway.config.yaml.document import DocumentPath
from gateway.model import glob_matches
from gateway.registries import (
    Diagnostic,
    EffectiveTrust,
    Proposal,
    UpstreamDefinition,
    claims_not_idempotent,
    contradicts_method,
    find_claimed_flags,
    in_effect_order,
    method_flags,
    propose_flags,
)

_FLAGS: Final = ("spec", "trust", "flags")
_IMPORT_FLAGS: Final = ("spec", "import", "trust", "flags")
_IMPORT_TOOLS: Final = ("spec", "import", "tools")
_MAX_NAMES: Final = 8


@dataclass(frozen=True, slots=True)
class StatedEffects:
    """The declared effects of a tool, before its tier is applied. `flags` is `None` if nothing declares them."""

    flags: frozenset[str] | None = None
    written: tuple[tuple[str, DocumentPath], ...] = ()
    """Flags that a document lists, with their paths."""
    place: DocumentPath | None = None
    """Path of the list of flags."""
    is_implied: bool = False
    claims: frozenset[str] = frozenset()
    denies_repeats: bool = False
    """Whether the upstream declares that its tool is not idempotent."""
    method: str | None = None


def effects_of_document(entry: DocumentEntry[ToolDocument], definition: UpstreamDefinition | None) -> StatedEffects:
    """Return the effects of a Tool document. `definition` is the upstream's definition of the published tool."""
    spec = entry.document.spec
    method = _method_of(spec.backend, definition)
    is_operation = isinstance(spec.backend, OpenApiBackendSpec)
    if is_operation and method is not None:
        stated = StatedEffects(method_flags(method), is_implied=True, method=method)
    else:  # the gateway itself generates the annotations of OpenAPI operations
        annotations = {} if definition is None or is_operation else definition.annotations
        denies_repeats = claims_not_idempotent(annotations)
        stated = StatedEffects(claims=find_claimed_flags(annotations), denies_repeats=denies_repeats, method=method)
    given = spec.trust.flags if spec.trust is not None else None
    if given is None:
        return stated
    written = _flag_paths(given, _FLAGS)
    return replace(stated, flags=frozenset(given), is_implied=False, written=written, place=_FLAGS)


def effects_of_import(spec: UpstreamSpec, definition: UpstreamDefinition) -> StatedEffects:
    """Return the effects of an imported tool without a Tool document. `import.trust` only adds to method flags."""
    is_openapi = spec.transport.type == "openapi"
    method = operation_method(definition) if is_openapi else None
    claims = frozenset[str]() if is_openapi else find_claimed_flags(definition.annotations)
    best = _best_patterns(spec.import_.tools, definition.name)
    if best:
        written = [
            each
            for name in best
            for each in _flag_paths(spec.import_.tools[name].flags, (*_IMPORT_TOOLS, name, "flags"))
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
    return StatedEffects(flags, _flag_paths(given, _IMPORT_FLAGS), _IMPORT_FLAGS, claims=claims, method=method)


def effects_of_terms(spec: UpstreamSpec) -> StatedEffects:
    """Return the effects of prompts, resources and imports without tools: only the flags of `import.trust`."""
    trust = spec.import_.trust
    given = (trust.flags if trust is not None else None) or ()
    return StatedEffects(frozenset(given), _flag_paths(given, _IMPORT_FLAGS), _IMPORT_FLAGS)


def operation_method(definition: UpstreamDefinition) -> str:
    """Return the method of an OpenAPI operation, or an empty text, which counts as writing, if it is unknown."""
    request = (definition.given.get("_meta") or {}).get(REQUEST_META)
    return str(request.get("method", "")) if isinstance(request, Mapping) else ""


def check_document(
    entry: DocumentEntry[ToolDocument],
    stated: StatedEffects,
    trust: EffectiveTrust,
    definition: UpstreamDefinition | None,
) -> Iterator[Diagnostic]:
    """Warn about effects that a document does not declare, or that contradict its method or its upstream."""
    if stated.flags is None:
        name, annotations = (entry.name, {}) if definition is None else (definition.name, definition.annotations)
        guess = propose_flags(name, annotations=annotations, method=stated.method)
        message = f"the effects of {entry.name} are not declared, so it counts as writes, destructive and egress"
        help = f"declare them if this is correct ({guess.because}): trust: {{flags: [{', '.join(guess.flags)}]}}"
        place = ("spec", "trust") if entry.has("spec", "trust") else ("metadata", "name")
        yield entry.problem("effects-undeclared", message, place, help=help, severity="warning")
        return
    if trust.claimed:
        message = f"the flags omit what the server declares for this tool: {_join_flags(trust.claimed)}"
        help = "add them; they apply already, because flags that a server declares always apply"
        yield entry.problem("effects-contradicted", message, _FLAGS, help=help, severity="warning")
    if entry.document.spec.idempotent and stated.denies_repeats:
        message = "the server declares that this tool is not idempotent"
        help = "remove idempotent: true; failed calls are not retried while the server declares this"
        place = ("spec", "idempotent")
        yield entry.problem("effects-contradicted", message, place, help=help, severity="warning")
    if stated.place is not None and stated.method is not None and contradicts_method(stated.method, trust.flags):
        message = f"the flags declare no change, but the method is {stated.method}"
        help = "add writes or destructive, or use another method"
        yield entry.problem("effects-contradicted", message, _FLAGS, help=help, severity="warning")


def check_imports(
    entry: DocumentEntry[UpstreamDocument], imported: Sequence[tuple[UpstreamDefinition, StatedEffects, EffectiveTrust]]
) -> Iterator[Diagnostic]:
    """Warn about missing or contradicted effects of imported tools, with one problem for several tools."""
    unknown = [definition for definition, stated, _ in imported if stated.flags is None]
    if unknown:
        yield _undeclared_problem(entry, unknown)
    claimed: dict[DocumentPath, list[str]] = {}
    by_method: dict[DocumentPath, list[str]] = {}
    for definition, stated, trust in imported:
        if stated.place is None:
            continue
        if trust.claimed:
            claimed.setdefault(stated.place, []).append(f"{definition.name} ({_join_flags(trust.claimed)})")
        if stated.method is not None and contradicts_method(stated.method, trust.flags):
            by_method.setdefault(stated.place, []).append(f"{definition.name} ({stated.method})")
    for place, tools in claimed.items():
        message = f"the flags omit what the server declares for its tools: {_join_names(tools)}"
        help = "add them in import.tools; they apply already, because flags that a server declares always apply"
        yield entry.problem("effects-contradicted", message, place, help=help, severity="warning")
    for place, tools in by_method.items():
        message = f"the flags declare no change, but the methods of these operations change data: {_join_names(tools)}"
        help = "add writes or destructive to their flags"
        yield entry.problem("effects-contradicted", message, place, help=help, severity="warning")


def find_idle_patterns(entry: DocumentEntry[UpstreamDocument], names: Collection[str]) -> Iterator[Diagnostic]:
    """Warn about patterns of `import.tools` that match no tool of the upstream."""
    for pattern in entry.document.spec.import_.tools if names else ():
        if not any(glob_matches(name, pattern) for name in names):
            message = f"no tool of the upstream matches {pattern!r}, so its flags apply to nothing"
            place = (*_IMPORT_TOOLS, pattern)
            yield entry.problem("idle-import", message, place, help="correct or remove it", severity="warning")


def propose_import_flags(spec: UpstreamSpec, definitions: Iterable[UpstreamDefinition]) -> list[Proposal]:
    """Return proposed flags for tools of undeclared effects, as a start for a reviewer."""
    return [
        propose_flags(each.name, annotations=each.annotations)
        for each in definitions
        if effects_of_import(spec, each).flags is None
    ]


def _undeclared_problem(entry: DocumentEntry[UpstreamDocument], unknown: Sequence[UpstreamDefinition]) -> Diagnostic:
    guesses = propose_import_flags(entry.document.spec, unknown[:_MAX_NAMES])
    count = len(unknown)
    what = f"the effects of {count} imported tool{'' if count == 1 else 's'} are not declared"
    message = f"{what}: {_join_names([each.name for each in unknown])}; each counts as writes, destructive and egress"
    block = f"tools: {{{', '.join(each.line for each in guesses)}}}"
    more = "; gateway lock prints the others" if count > len(guesses) else ""
    help = f"review this proposal and declare the flags in spec.import: {block}{more}"
    place = ("spec", "import", "trust") if entry.has("spec", "import", "trust") else ("spec", "import")
    return entry.problem("effects-undeclared", message, place, help=help, severity="warning")


def _method_of(backend: Any, definition: UpstreamDefinition | None) -> str | None:
    if isinstance(backend, HttpBackendSpec):
        return backend.method
    return operation_method(definition) if isinstance(backend, OpenApiBackendSpec) and definition is not None else None


def _best_patterns(patterns: Iterable[str], name: str) -> list[str]:
    """Return the exact name, or the matching patterns with the most literal characters. Their flags are combined."""
    fitting = [each for each in patterns if glob_matches(name, each)]
    if name in fitting:
        return [name]
    most = max((len(each.replace("*", "")) for each in fitting), default=0)
    return [each for each in fitting if len(each.replace("*", "")) == most]


def _flag_paths(flags: Sequence[str], place: DocumentPath) -> tuple[tuple[str, DocumentPath], ...]:
    return tuple((flag, (*place, index)) for index, flag in enumerate(flags))


def _join_flags(flags: Iterable[str]) -> str:
    return ", ".join(in_effect_order(flags))


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
