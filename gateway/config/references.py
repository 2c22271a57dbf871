"""References between documents: every name that stands for another document leads to one.

Works on plain data, so that a document whose shape is wrong still has its references checked and one run shows
everything. Patterns are references only where they have no `*`. Tools that a catalogue advertises may have other names
than their documents, so those are looked for where catalogues are linked.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from gateway.config.nodes import Document, Path
from gateway.config.specs.common import BaseArtifact
from gateway.errors import ToolAlreadyRegistered
from gateway.governance.diagnostics import Diagnostic, did_you_mean
from gateway.governance.effects import EFFECT_FLAGS

EACH: Final = "*"
"""In a reference's path: every entry of a list, or every value of a mapping."""

BUILT_IN_ARTIFACTS: Final = frozenset(get_args(BaseArtifact))
_ONLY_ONE: Final = "Gateway"


@dataclass(frozen=True, slots=True)
class Reference:
    """A place in documents of a kind where a document of another kind is named."""

    path: tuple[str, ...]
    target: str
    built_in: frozenset[str] = frozenset()


def _references(target: str, *places: str, built_in: frozenset[str] = frozenset()) -> list[Reference]:
    return [Reference(tuple(place.split(".")), target, built_in) for place in places]


def _flags(*places: str) -> list[Reference]:
    return _references("TrustFlag", *places, built_in=EFFECT_FLAGS)


def _selector(prefix: str) -> list[Reference]:
    """What a selection of tools names; its tools are patterns, matched where catalogues are resolved."""
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


def check_references(documents: Sequence[Document]) -> list[Diagnostic]:
    """Names that lead nowhere, documents that share one name, and a missing or second Gateway."""
    named = _by_kind_and_name(documents)
    return [
        *_duplicates(named),
        *_gateways(documents, named),
        *(found for document in documents for found in _broken_references(document, named)),
    ]


def identity_of(document: Document) -> tuple[str, str] | None:
    """Kind and name, if the document has both."""
    metadata = document.data.get("metadata")
    kind, name = document.data.get("kind"), metadata.get("name") if isinstance(metadata, dict) else None
    return (kind, name) if isinstance(kind, str) and isinstance(name, str) else None


_Named = Mapping[str, Mapping[str, Sequence[Document]]]


def _by_kind_and_name(documents: Iterable[Document]) -> _Named:
    named: dict[str, dict[str, list[Document]]] = {}
    for document in documents:
        identity = identity_of(document)
        if identity is not None:
            named.setdefault(identity[0], {}).setdefault(identity[1], []).append(document)
    return named


def _duplicates(named: _Named) -> Iterator[Diagnostic]:
    for kind, by_name in named.items():
        for name, (first, *others) in by_name.items():
            for document in others:
                code = f" ({ToolAlreadyRegistered.code})" if kind == "Tool" else ""
                yield Diagnostic(
                    "duplicate-name",
                    f"there are two documents {kind} {name!r}{code}",
                    document.position(("metadata", "name")),
                    help="rename or remove one of them",
                    related=[("the first one", first.position(("metadata", "name")))],
                )


def _gateways(documents: Sequence[Document], named: _Named) -> Iterator[Diagnostic]:
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


def _broken_references(document: Document, named: _Named) -> Iterator[Diagnostic]:
    spec = document.data.get("spec")
    kind = document.data.get("kind")
    for reference in REFERENCES.get(kind, ()) if isinstance(kind, str) else ():
        known = named.get(reference.target, {})
        for path, name in _values_at(spec, reference.path, ("spec",)):
            if EACH in name or name in known or name in reference.built_in:
                continue
            shown = "(from the environment, not shown)" if path in document.substituted else repr(name)
            message = f"there is no {reference.target} {shown}"
            help = did_you_mean(name, [*known, *reference.built_in]) or _known(reference.target, known)
            yield Diagnostic("unknown-reference", message, document.position(path), help=help)


def _known(kind: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if not names:
        return f"no {kind} is declared"
    return f"declared: {', '.join(names[:8])}" + (", …" if len(names) > 8 else "")


def _values_at(data: Any, path: tuple[str, ...], place: Path) -> Iterator[tuple[Path, str]]:
    """The texts at a path, wherever the data has the shape for it."""
    if not path:
        if isinstance(data, str):
            yield place, data
        return
    step, *rest = path
    if step == EACH and isinstance(data, list):
        for index, item in enumerate(data):
            yield from _values_at(item, tuple(rest), (*place, index))
    elif step == EACH and isinstance(data, dict):
        for key, item in data.items():
            yield from _values_at(item, tuple(rest), (*place, key))
    elif isinstance(data, dict) and step in data:
        yield from _values_at(data[step], tuple(rest), (*place, step))
