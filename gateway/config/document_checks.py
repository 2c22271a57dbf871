"""Checks of single documents and of the references between them.

`check_references` checks that every name of another document exists. It works on plain data, so references are checked
even in a document of the wrong shape, and one run reports all problems. A name with `*` is a pattern, not a reference.
Catalogues may advertise tools under other names; the linker checks those.

`check_embedded_code` compiles CEL expressions, JSON Schemas, JSONPaths and stage lists to report errors early. The
linker compiles them again.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, get_args

from pydantic import ValidationError

from gateway.artifacts import JsonPath as JsonPath
from gateway.config.field_introspection import FieldType, MapField, ObjectField, ScalarField
from gateway.config.kinds.common_specs import BaseArtifact
from gateway.config.kinds.pipelines import STAGE_OPTIONS, parse_stage_options
from gateway.config.kinds.validation import ShapeProblem, find_shape_problems, redact
from gateway.config.yaml.document import DocumentPath, YamlDocument
from gateway.errors import JsonPathInvalid, ToolAlreadyRegistered
from gateway.model import Schema
from gateway.policy import compile_condition
from gateway.registries import (
    BUILT_IN_STAGES,
    EFFECT_FLAGS,
    PHASES,
    Diagnostic,
    Position,
    Stage,
    add_plug_in_stages,
    check_stage_order,
    plug_in_group,
    suggest_name,
)

ANY_ITEM: Final = "*"
"""Path step that stands for every entry of a list, or every value of a mapping."""

BUILT_IN_ARTIFACTS: Final = frozenset(get_args(BaseArtifact))
_ONLY_ONE: Final = "Gateway"


@dataclass(frozen=True, slots=True)
class Reference:
    """A field that names a document of another kind."""

    path: tuple[str, ...]
    target: str
    built_in: frozenset[str] = frozenset()


def _references(target: str, *places: str, built_in: frozenset[str] = frozenset()) -> list[Reference]:
    return [Reference(tuple(place.split(".")), target, built_in) for place in places]


def _flags(*places: str) -> list[Reference]:
    return _references("TrustFlag", *places, built_in=EFFECT_FLAGS)


def _selector(prefix: str) -> list[Reference]:
    """Return the references of a tool selector. Its tool patterns are matched when catalogues are linked."""
    return [
        *_flags(f"{prefix}.flags.*"),
        *_references("TrustTier", f"{prefix}.tiers.*"),
        *_references("Upstream", f"{prefix}.upstreams.*"),
        *_references("ArtifactClass", f"{prefix}.artifacts.*", built_in=BUILT_IN_ARTIFACTS),
    ]


def _trust(prefix: str) -> list[Reference]:
    return [*_references("TrustTier", f"{prefix}.tier"), *_flags(f"{prefix}.flags.*")]


REFERENCES: Final[Mapping[str, Sequence[Reference]]] = {
    "Gateway": [
        *_references("Pipeline", "defaults.pipeline"),
        *_references("CollisionPolicy", "defaults.collisionPolicy"),
        *_references("TrustTier", "defaults.tier"),
        *_references("Catalogue", "defaults.catalogue"),
        *_references("IdentityProvider", "identity.*"),
        *_references("Storage", "storage"),
        *_references("Telemetry", "telemetry"),
    ],
    "TrustFlag": _flags("implies.*"),
    "TrustTier": _flags("forbids.flags.*", "addsFlags.*"),
    "ArtifactClass": [
        *_references("TrustTier", "flow.maxTier"),
        *_flags("flow.blockedBy.*"),
    ],
    "GateRule": [*_selector("match"), *_references("Catalogue", "match.catalogues.*")],
    "Pipeline": _flags("refuses.flags.*", "call.*.with.unlessFlags.*"),
    "Tool": [
        *_trust("trust"),
        *_references("ArtifactClass", "output.artifact", built_in=BUILT_IN_ARTIFACTS),
        *_references("Upstream", "backend.upstream"),
        *_references("Tool", "deprecation.use"),
    ],
    "Upstream": [*_trust("import.trust"), *_flags("import.tools.*.flags.*")],
    "Catalogue": [
        *_references("Pipeline", "pipeline"),
        *_references("CollisionPolicy", "collisionPolicy"),
        *_selector("include.*"),
        *_selector("exclude.*"),
        *_references("TrustTier", "include.*.maxTier", "exclude.*.maxTier"),
        *_flags("forbidTogether.*.*", "waivers.*.forbidTogether.*"),
    ],
    "PolicyTest": [
        *_references("Catalogue", "given.catalogue", "cases.*.in"),
        *_flags("cases.*.turn.saw.*"),
        *_references("ArtifactClass", "cases.*.turn.read.*", "cases.*.expect.because.class"),
        *_references("GateRule", "cases.*.expect.because.gate"),
        *_references("TrustTier", "cases.*.expect.because.tier"),
    ],
}


def check_references(documents: Sequence[YamlDocument]) -> list[Diagnostic]:
    """Report references to missing documents, duplicate names, and a missing or second Gateway."""
    named = _by_kind_and_name(documents)
    return [
        *_find_duplicates(named),
        *_check_gateway_count(documents, named),
        *(found for document in documents for found in _find_broken_references(document, named)),
    ]


def document_identity(document: YamlDocument) -> tuple[str, str] | None:
    """Return kind and name, or `None` if the document lacks one of them."""
    metadata = document.data.get("metadata")
    kind, name = document.data.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None
    return (kind, name) if isinstance(kind, str) and isinstance(name, str) else None


_Named = Mapping[str, Mapping[str, Sequence[YamlDocument]]]


def _by_kind_and_name(documents: Iterable[YamlDocument]) -> _Named:
    named: dict[str, dict[str, list[YamlDocument]]] = {}
    for document in documents:
        identity = document_identity(document)
        if identity is not None:
            named.setdefault(identity[0], {}).setdefault(identity[1], []).append(document)
    return named


def _find_duplicates(named: _Named) -> Iterator[Diagnostic]:
    for kind, by_name in named.items():
        for name, (first, *others) in by_name.items():
            for document in others:
                code = f" ({ToolAlreadyRegistered.code})" if kind == "Tool" else ""
                yield Diagnostic(
                    "duplicate-name",
                    f"two documents are named {kind} {name!r}{code}",
                    document.position(("metadata", "name")),
                    help="rename or remove one of them",
                    related=[("the first one", first.position(("metadata", "name")))],
                )


def _check_gateway_count(documents: Sequence[YamlDocument], named: _Named) -> Iterator[Diagnostic]:
    found = [document for same in named.get(_ONLY_ONE, {}).values() for document in same]
    for document in found[1:]:
        related = [("the first one", found[0].position(("kind",)))]
        yield Diagnostic(
            "second-gateway", "there is more than one Gateway", document.position(("kind",)), related=related
        )
    if documents and not found:
        yield Diagnostic(
            "no-gateway",
            "there is no Gateway document",
            documents[0].position(()),
            help="add one document of kind Gateway",
        )


def _find_broken_references(document: YamlDocument, named: _Named) -> Iterator[Diagnostic]:
    spec = document.data.get("spec")
    kind = document.data.get("kind")
    for reference in REFERENCES.get(kind, ()) if isinstance(kind, str) else ():
        known = named.get(reference.target, {})
        for path, name in _values_at(spec, reference.path, ("spec",)):
            if ANY_ITEM in name or name in known or name in reference.built_in:
                continue
            shown = "(from the environment, not shown)" if path in document.substituted else repr(name)
            message = f"there is no {reference.target} {shown}"
            help = suggest_name(name, [*known, *reference.built_in]) or _list_declared(reference.target, known)
            yield Diagnostic("unknown-reference", message, document.position(path), help=help)


def _list_declared(kind: str, declared: Iterable[str]) -> str:
    names = sorted(declared)
    if not names:
        return f"no {kind} is declared"
    return f"declared: {', '.join(names[:8])}" + (", …" if len(names) > 8 else "")


def _values_at(data: Any, path: tuple[str, ...], place: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
    """Yield every text at a path. Skip data of another shape."""
    if not path:
        if isinstance(data, str):
            yield place, data
        return
    step, *rest = path
    if step == ANY_ITEM and isinstance(data, list):
        for index, item in enumerate(data):
            yield from _values_at(item, tuple(rest), (*place, index))
    elif step == ANY_ITEM and isinstance(data, dict):
        for key, item in data.items():
            yield from _values_at(item, tuple(rest), (*place, key))
    elif isinstance(data, dict) and step in data:
        yield from _values_at(data[step], tuple(rest), (*place, step))


_EXPRESSIONS: Final[dict[str, tuple[DocumentPath, ...]]] = {
    "GateRule": (("spec", "when"), ("spec", "check", "require"))
}
_INPUT_SCHEMA: Final = ("spec", "input", "schema")
_SCHEMAS: Final[dict[str, tuple[DocumentPath, ...]]] = {
    "Tool": (_INPUT_SCHEMA, ("spec", "output", "schema")),
    "GateRule": (("spec", "check", "resolution"),),
}
_PATHS: Final[dict[str, tuple[DocumentPath, ...]]] = {
    "Tool": (("spec", "backend", "pick"),),
    "ArtifactClass": (("spec", "redact", ANY_ITEM),),
}
_KEY: Final = ScalarField("a key")
_PLAIN_PATH: Final = re.compile(r"\$(?:\.(?:[A-Za-z_][A-Za-z0-9_]{0,63}|\*)|\[(?:[0-9]{1,6}|\*)\]){0,16}")


def check_embedded_code(
    documents: Iterable[YamlDocument], input_schemas: dict[str, dict[str, Any]]
) -> Iterator[Diagnostic]:
    """Report unusable expressions, schemas, paths and stages. The shape check reports values of the wrong type.

    The input schemas that compile are added to `input_schemas` as they are enforced, by the name of their tool.
    """
    for document in documents:
        kind = document.data.get("kind")
        if isinstance(kind, str):
            for path in _EXPRESSIONS.get(kind, ()):
                yield from _check_expression(document, path)
            for path in _SCHEMAS.get(kind, ()):
                yield from _check_schema(document, path, input_schemas)
            for path in _PATHS.get(kind, ()):
                for each in _expand_path(document, path):
                    yield from _check_path(document, each)
            if kind == "Pipeline":
                yield from _check_stages(document)
                yield from _check_options(document)


def _check_expression(document: YamlDocument, path: DocumentPath) -> Iterator[Diagnostic]:
    source = _value_at(document.data, path)
    if not isinstance(source, str) or not source.strip():
        return
    for problem in compile_condition(source)[1]:
        if path in document.substituted:  # the parser's message quotes the text
            message = "the expression is invalid after environment variables are filled in; it is not shown"
            yield Diagnostic("bad-condition", message, document.position(path))
            return
        position = position_inside(document.position(path), source, column=problem.column, width=problem.width)
        yield Diagnostic("bad-condition", problem.message, position, help=problem.help)


def position_inside(scalar: Position, source: str, *, column: int, width: int) -> Position:
    """Return the position of a token inside a scalar, or of the whole scalar if it spans lines or has escapes."""
    quotes = scalar.width - len(source)
    if "\n" in source or quotes not in (0, 2):
        return scalar
    return Position(scalar.file, scalar.line, scalar.column + quotes // 2 + column - 1, width)


def _check_schema(
    document: YamlDocument, path: DocumentPath, input_schemas: dict[str, dict[str, Any]]
) -> Iterator[Diagnostic]:
    schema = _value_at(document.data, path)
    if not isinstance(schema, dict):
        return
    try:
        compiled = Schema(schema)
        if path == _INPUT_SCHEMA:
            input_schemas.setdefault(str(_value_at(document.data, ("metadata", "name"))), compiled.describe())
    except ValueError as error:
        is_shown = not any(each[: len(path)] == path for each in document.substituted)
        hidden = "not a valid JSON Schema; details are hidden because a part comes from the environment"
        yield Diagnostic("bad-schema", str(error) if is_shown else hidden, _defect_position(document, path, error))


def _defect_position(document: YamlDocument, path: DocumentPath, error: ValueError) -> Position:
    """Return the position that the meta-schema refuses, or that of the whole schema if it is unknown."""
    place = (*path, *getattr(error.__cause__, "instance_path", ()))
    return document.position(place) if place != path and place in document.positions else document.key_position(path)


def _check_path(document: YamlDocument, path: DocumentPath) -> Iterator[Diagnostic]:
    source = _value_at(document.data, path)
    if not isinstance(source, str) or not source.startswith("$") or "\n" in source or "\r" in source:
        return
    if _PLAIN_PATH.fullmatch(source):  # plain paths are valid; do not load the JSONPath library for them
        return
    try:
        JsonPath(source)
    except JsonPathInvalid as error:
        hidden = "the path is not a valid JSONPath; it comes from the environment, so it is not shown"
        message = hidden if path in document.substituted else error.message
        yield Diagnostic("bad-path", message, document.position(path), help=error.help)


def _check_options(document: YamlDocument) -> Iterator[Diagnostic]:
    for path in (each for phase in PHASES for each in _expand_path(document, ("spec", phase, ANY_ITEM))):
        stage = _value_at(document.data, path)
        name, given = (stage.get("use"), stage.get("with", {})) if isinstance(stage, dict) else (None, None)
        if isinstance(name, str) and name in STAGE_OPTIONS and isinstance(given, dict):
            for problem in _option_problems(name, given, path=(*path, "with")):
                yield _to_diagnostic(document, redact(problem, document.substituted))


def _option_problems(name: str, given: dict[Any, Any], *, path: DocumentPath) -> list[ShapeProblem]:
    try:
        parse_stage_options(name, given)
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_input=False)
        for error in errors:
            error["loc"] = (*path, *error["loc"])
        data, shape = _nest(given, ObjectField(STAGE_OPTIONS[name]), path=path)
        return find_shape_problems(errors, data, shape)
    return []


def _nest(value: Any, shape: FieldType, *, path: DocumentPath) -> tuple[dict[Any, Any], FieldType]:
    """Wrap the value and its shape in mappings along `path`, so that problems name the whole path."""
    for step in reversed(path):
        value, shape = {step: value}, MapField(_KEY, shape)
    return value, shape


def _to_diagnostic(document: YamlDocument, problem: ShapeProblem) -> Diagnostic:
    position = document.key_position(problem.path) if problem.at_key else document.position(problem.path)
    return Diagnostic(problem.code, problem.message, position, help=problem.help)


def _check_stages(document: YamlDocument) -> Iterator[Diagnostic]:
    for phase in PHASES:
        listed = _value_at(document.data, ("spec", phase))
        names = [_value_at(stage, ("use",)) for stage in listed] if isinstance(listed, list) else []
        if all(isinstance(name, str) for name in names):
            for problem in check_stage_order(phase, names, _find_stages(names)):
                place = ("spec", phase, problem.index, "use")
                is_hidden = place in document.substituted
                message = "the stage (from the environment, not shown) is wrong here" if is_hidden else problem.message
                yield Diagnostic(problem.code, message, document.position(place), help=problem.help)


def _find_stages(names: Iterable[str]) -> Mapping[str, Stage]:
    if all(name in BUILT_IN_STAGES for name in names):  # searching installed packages is slow
        return BUILT_IN_STAGES
    return add_plug_in_stages({phase: entry_points(group=plug_in_group(phase)).names for phase in PHASES})


def _expand_path(document: YamlDocument, path: DocumentPath) -> list[DocumentPath]:
    """Return the path, or, if it ends in `ANY_ITEM`, the path of every entry of the list."""
    if path[-1] != ANY_ITEM:
        return [path]
    listed = _value_at(document.data, path[:-1])
    return [(*path[:-1], index) for index in range(len(listed))] if isinstance(listed, list) else []


def _value_at(data: Any, path: DocumentPath) -> Any:
    for step in path:
        if isinstance(data, list) and isinstance(step, int):
            data = data[step]
        elif isinstance(data, dict):
            data = data.get(step)
        else:
            return None
    return data
