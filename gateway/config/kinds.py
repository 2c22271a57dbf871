"""The table of kinds: which model a document has, and what is wrong with a document's shape.

It works on plain data, one document at a time: no file, no reference to other documents.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from gateway.config.problems import SpecProblem, discreet, quoted, spec_problems
from gateway.config.shapes import Object, fields_of
from gateway.config.specs.artifacts import ArtifactClassDocument
from gateway.config.specs.base import Path
from gateway.config.specs.catalogues import CatalogueDocument
from gateway.config.specs.collisions import CollisionPolicyDocument
from gateway.config.specs.common import API_VERSION, Document, OwnedMetadata
from gateway.config.specs.gates import GateRuleDocument
from gateway.config.specs.gateway import (
    GatewayDocument,
    IdentityProviderDocument,
    StorageDocument,
    TelemetryDocument,
)
from gateway.config.specs.overlays import OverlayDocument
from gateway.config.specs.pipelines import PipelineDocument
from gateway.config.specs.policy_tests import PolicyTestDocument
from gateway.config.specs.scalars import type_name
from gateway.config.specs.tools import ToolDocument
from gateway.config.specs.trust import TrustFlagDocument, TrustTierDocument
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.governance.diagnostics import did_you_mean

__all__ = ["KINDS", "Kind", "SpecProblem", "validate"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of document."""

    name: str
    plural: str
    model: type[Document]

    @property
    def needs_owner(self) -> bool:
        return fields_of(self.model)["metadata"].shape == Object(OwnedMetadata)

    @property
    def summary(self) -> str:
        """One line about what such a document declares."""
        return (self.model.__doc__ or "").strip()


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        Kind("Gateway", "gateways", GatewayDocument),
        Kind("IdentityProvider", "identityproviders", IdentityProviderDocument),
        Kind("Storage", "storages", StorageDocument),
        Kind("Telemetry", "telemetries", TelemetryDocument),
        Kind("TrustFlag", "trustflags", TrustFlagDocument),
        Kind("TrustTier", "trusttiers", TrustTierDocument),
        Kind("ArtifactClass", "artifactclasses", ArtifactClassDocument),
        Kind("CollisionPolicy", "collisionpolicies", CollisionPolicyDocument),
        Kind("GateRule", "gaterules", GateRuleDocument),
        Kind("Pipeline", "pipelines", PipelineDocument),
        Kind("Tool", "tools", ToolDocument),
        Kind("Upstream", "upstreams", UpstreamDocument),
        Kind("Catalogue", "catalogues", CatalogueDocument),
        Kind("Overlay", "overlays", OverlayDocument),
        Kind("PolicyTest", "policytests", PolicyTestDocument),
    )
}
"""Every kind, in the order in which people read a configuration."""


def validate(data: object, *, hidden: Collection[Path] = ()) -> tuple[Document | None, list[SpecProblem]]:
    """The document, or everything that is wrong with its shape.

    Rules over several fields are asked once each of these fields is right by itself. Values under `hidden` paths,
    such as those that come from the environment, are never quoted.
    """
    if not isinstance(data, dict):
        return None, [SpecProblem("wrong-type", (), f"a document is a mapping, not {type_name(data)}")]
    document, problems = _read(data)
    return document, [discreet(problem, hidden) for problem in problems]


def _read(data: dict[Any, Any]) -> tuple[Document | None, list[SpecProblem]]:
    if problems := _unreadable(data):
        return None, problems
    model = KINDS[data["kind"]].model
    try:
        return model.model_validate(data), []
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_input=False)
        return None, spec_problems(errors, data, Object(model))


def _unreadable(data: Mapping[Any, Any]) -> list[SpecProblem]:
    """Why the rest cannot be judged: it is not known which shape the document should have."""
    problems = []
    version, kind = data.get("apiVersion", API_VERSION), data.get("kind")
    if version != API_VERSION:
        problems.append(
            SpecProblem("unknown-version", ("apiVersion",), _there_is_no("version", version), f"write {API_VERSION}")
        )
    if "kind" not in data:
        help = f"choose one of: {', '.join(KINDS)}"
        problems.append(SpecProblem("missing-field", (), "the document needs 'kind'", help, True))
    elif not isinstance(kind, str) or kind not in KINDS:
        help = (isinstance(kind, str) and did_you_mean(kind, KINDS)) or f"choose one of: {', '.join(KINDS)}"
        problems.append(SpecProblem("unknown-kind", ("kind",), _there_is_no("kind", kind), help))
    return problems


def _there_is_no(what: str, value: object) -> str:
    if isinstance(value, str):
        return f"there is no {what} {quoted(value)}"
    return f"expected a {what}, got {type_name(value)}"
