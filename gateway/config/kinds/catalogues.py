"""Catalogue: the tools that an audience gets at a path. CollisionPolicy: how name collisions of tools are resolved."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.config.kinds.common_specs import (
    DocumentModel,
    ListOf,
    NonEmptyListOf,
    OnCollisionSpec,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SpecModel,
    ToolSelectorSpec,
)
from gateway.config.kinds.scalars import Day, IdleTime, Name, NamePattern, PrincipalName, Prose, TextScalar

RESERVED_PATHS: Final = ("mcp", "v1", "admin", "livez", "readyz", ".well-known")

PublishPath = Annotated[
    str,
    TextScalar(
        "a path",
        "write a path that starts with '/': /engineering",
        r"(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}){1,4}|/\.well-known(?:/[^\s]{0,64})?",
        code="bad-path",
    ),
]
IMPLICIT: Final = timedelta(minutes=30)
_LONGEST_IMPLICIT: Final = timedelta(days=30)
CombinationSpec = Annotated[NonEmptyListOf[Name], Field(min_length=2)]


class CatalogueSelectorSpec(ToolSelectorSpec):
    """Selects what is served: all given keys must match; within a key, any entry matches.

    A selector that names tools, prompts or resources selects only those; without names it selects all of them.
    """

    prompts: ListOf[NamePattern] = Field((), description="Names or patterns of prompts: upstream.name.")
    resources: ListOf[NamePattern] = Field((), description="Names or patterns of groups of resources: upstream.name.")

    max_tier: OptionalField[Name] = Field(None, description="Least trusted TrustTier that is selected.")


class CombinationWaiverSpec(SpecModel):
    """A temporary exception, with a person or team responsible for it."""

    forbid_together: CombinationSpec = Field(description="The combination that is allowed.")
    until: Day = Field(description="Last day of the exception.")
    by: Name = Field(description="Person or team that allowed it.")
    because: Prose = Field(description="Reason for the exception.")


class PublishSpec(SpecModel):
    """Where and how the catalogue is served."""

    path: PublishPath = Field(description="URL path at which it is served.")
    as_: NonEmptyListOf[Literal["mcp", "http"]] = Field(("mcp", "http"), description="Protocols that serve it.")
    render: Literal["envelope", "plain"] = Field(
        "envelope", description="Whether text results are sent in the trust envelope or plain."
    )
    structured: Literal["raw", "off"] = Field(
        "raw", description="Whether JSON results are also sent as structured content, which has no trust envelope."
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.path.split("/")[1] in RESERVED_PATHS:
            yield RuleViolation(("path",), f"the path {self.path!r} is reserved for the gateway", "choose another path")


class Turns(SpecModel):
    """How calls without a session and without a turn handle are grouped into turns."""

    implicit: IdleTime = Field(
        IMPLICIT,
        description="Idle time after which an implicit turn ends. Such calls of one caller with one credential share "
        "an implicit turn, for rules about earlier calls. 'off' makes each call its own turn.",
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.implicit is not None and self.implicit > _LONGEST_IMPLICIT:
            yield RuleViolation(("implicit",), "an implicit turn lasts at most 30 idle days", code="bad-duration")


class CatalogueSpec(SpecModel):
    """The tools that an audience gets, and how they are served."""

    audience: NonEmptyListOf[PrincipalName] = Field(
        description="Roles and subjects that may connect; the policy decides each action."
    )
    pipeline: OptionalField[Name] = Field(None, description="Pipeline; the default if left out.")
    collision_policy: OptionalField[Name] = Field(None, description="CollisionPolicy; the default if left out.")
    include: NonEmptyListOf[CatalogueSelectorSpec] = Field(description="Tools that are included; any entry matches.")
    exclude: ListOf[CatalogueSelectorSpec] = Field((), description="Tools that are excluded again; any entry matches.")
    forbid_together: ListOf[CombinationSpec] = Field((), description="TrustFlags that its tools must not combine.")
    waivers: ListOf[CombinationWaiverSpec] = Field((), description="Exceptions from forbidTogether.")
    hidden: ListOf[NamePattern] = Field((), description="Tools that can be called by name but are not listed.")
    publish: PublishSpec = Field(description="Where and how the catalogue is served.")
    turns: OptionalField[Turns] = Field(None, description="How calls are grouped into turns.")
    instructions: OptionalField[Prose] = Field(None, description="Instructions for models about the catalogue.")

    def check_rules(self) -> Iterable[RuleViolation]:
        forbidden = {frozenset(flags) for flags in self.forbid_together}
        for index, waiver in enumerate(self.waivers):
            if frozenset(waiver.forbid_together) not in forbidden:
                yield RuleViolation(
                    ("waivers", index, "forbidTogether"),
                    "the waiver matches no combination of spec.forbidTogether",
                    "name one of these combinations, or remove the waiver",
                )


class CatalogueDocument(DocumentModel):
    """The tools that an audience gets."""

    kind: Literal["Catalogue"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: CatalogueSpec = Field(description="The tools, their audience and their path.")


PrefixPolicy = Annotated[
    str,
    TextScalar(
        "a prefix",
        "write letters, digits, '_', '-', '.' and {upstream}",
        r"(?:[A-Za-z0-9_.-]|\{upstream\}){0,64}",
        code="bad-name",
    ),
]


class NamePolicySpec(SpecModel):
    """How names are compared."""

    compare: Literal["exact", "folded"] = Field("folded", description="Folded ignores case and the characters - _ .")
    lookalikes: Literal["throw", "ignore"] = Field("throw", description="Whether look-alike names are errors.")
    reserved: ListOf[NamePattern] = Field((), description="Names or patterns that no tool may have.")


class ImportPrefixSpec(SpecModel):
    """How imported tools are named."""

    prefix: PrefixPolicy = Field("{upstream}_", description="Prefix of each imported name.")


class CollisionPolicySpec(SpecModel):
    """How a collision of two tool names is resolved."""

    on_collision: OnCollisionSpec = Field("throw", description="Outcome if the incoming tool has onCollision: throw.")
    honour_tool: Literal["sameOrHigherTrust", "always", "never"] = Field(
        "sameOrHigherTrust",
        description="When the onCollision of the incoming tool applies. In any case, a tool never replaces one that is "
        "more trusted, or one of the same tier that can do less.",
    )
    order: NonEmptyListOf[Literal["tools", "upstreams"]] = Field(
        ("tools", "upstreams"), description="Order of registration; the later tool is the incoming one."
    )
    names: OptionalField[NamePolicySpec] = Field(None, description="How names are compared.")
    imports: OptionalField[ImportPrefixSpec] = Field(None, description="How imported tools are named.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if sorted(self.order) != ["tools", "upstreams"]:
            yield RuleViolation(("order",), "order must list tools and upstreams once each")


class CollisionPolicyDocument(DocumentModel):
    """How name collisions of tools are resolved."""

    kind: Literal["CollisionPolicy"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: CollisionPolicySpec = Field(description="The policy.")
