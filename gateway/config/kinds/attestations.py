"""Attestation: an owner looked at the access to what it owns. `gateway access attest` writes it."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from gateway.config.kinds.common_specs import (
    DocumentModel,
    ListOf,
    NonEmptyListOf,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SpecModel,
)
from gateway.config.kinds.scalars import Day, Duration, Name, PolicyObject, SingleLineText, TextScalar
from gateway.model import NAME_REGEX

AttestedAction = Annotated[
    str,
    TextScalar(
        "an action",
        "write see, call, read, read:QUERY, approve, administer or observe",
        rf"see|call|read(?::{NAME_REGEX})?|approve|administer|observe",
    ),
]
CallerLabel = Annotated[
    str, TextScalar("a caller", "write a subject or a role, and roles after ' as '", r"[^\r\n]{1,4000}")
]
AccessDigest = Annotated[str, TextScalar("a digest", "write sha256: and 64 hexadecimal digits", r"sha256:[0-9a-f]{64}")]


class AccessReviewSpec(SpecModel):
    """Owners that look at the access to what they own; gateway check warns if they do not."""

    every: Duration = Field(description="Maximum age of an attestation.")
    owners: OptionalField[NonEmptyListOf[Name]] = Field(
        None, description="Owners that must attest; by default, all owners of published tools and of callers."
    )


class AttestedAccessSpec(SpecModel):
    """Callers with the same rights to the same objects."""

    catalogue: SingleLineText = Field(description="The Catalogue; * for the object config.")
    callers: NonEmptyListOf[CallerLabel] = Field(description="The callers; a role stands for each caller with it.")
    objects: NonEmptyListOf[PolicyObject] = Field(description="Tools, prompts and resources, by their names in rows.")
    may: NonEmptyListOf[AttestedAction] = Field(description="What the callers can do with them.")
    gates: ListOf[SingleLineText] = Field((), description="GateRules that may hold or deny their calls.")


class AttestationSpec(SpecModel):
    """Who looked at the access, when, and what it was."""

    by: SingleLineText = Field(description="The person who looked at the access.")
    date: Day = Field(description="Day on which the person looked at it.")
    until: Day = Field(description="Last day on which the attestation counts.")
    environment: OptionalField[SingleLineText] = Field(
        None, description="Environment whose access was looked at; without it, all that have no own."
    )
    digest: AccessDigest = Field(description="SHA-256 of the access, which gateway access --owner prints.")
    access: ListOf[AttestedAccessSpec] = Field(description="The access.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.until < self.date:
            yield RuleViolation(("until",), "the last day is before the date", "attest it again", "bad-date")


class AttestationDocument(DocumentModel):
    """Statement of an owner about the access to what it owns."""

    kind: Literal["Attestation"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: AttestationSpec = Field(description="Who looked at the access, when, and what it was.")
