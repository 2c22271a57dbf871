"""Catalogue: which tools an audience gets, under which address."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.config.specs.base import Broken, Many, Maybe, Some, Spec
from gateway.config.specs.common import Document, OwnedMetadata, Selector
from gateway.config.specs.scalars import Day, IdleTime, Name, Pattern, Principal, Prose, Text

RESERVED_PATHS: Final = ("mcp", "v1", "admin", "livez", "readyz", ".well-known")

PublishPath = Annotated[
    str,
    Text(
        "a path",
        "write a path that starts with '/': /engineering",
        r"(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}){1,4}|/\.well-known(?:/[^\s]{0,64})?",
        code="bad-path",
    ),
]
IMPLICIT: Final = timedelta(minutes=30)
_LONGEST_IMPLICIT: Final = timedelta(days=30)
Combination = Annotated[Some[Name], Field(min_length=2)]


class CatalogueSelector(Selector):
    """Chooses what is served: all given keys must hold; within a key, any entry.

    An entry that names tools, prompts or resources chooses only what it names; without names it chooses all of them.
    """

    prompts: Many[Pattern] = Field((), description="Names or patterns of prompts: upstream.name.")
    resources: Many[Pattern] = Field((), description="Names or patterns of groups of resources: upstream.name.")

    max_tier: Maybe[Name] = Field(None, description="Least trusted TrustTier that is let in.")


class Waiver(Spec):
    """An exception, with somebody who answers for it and a last day."""

    forbid_together: Combination = Field(description="The combination that is let through.")
    until: Day = Field(description="Last day of the exception.")
    by: Name = Field(description="Who allowed it.")
    because: Prose = Field(description="Why it is bearable.")


class Publish(Spec):
    """Where the catalogue is found."""

    path: PublishPath = Field(description="Path under which it is served.")
    as_: Some[Literal["mcp", "http"]] = Field(("mcp", "http"), description="Protocols under which it is served.")
    render: Literal["envelope", "plain"] = Field(
        "envelope", description="Whether text results go out in the trust envelope or bare."
    )
    structured: Literal["raw", "off"] = Field(
        "raw", description="Whether programs get JSON results beside the text; no envelope marks that JSON."
    )

    def broken_rules(self) -> Iterable[Broken]:
        if self.path.split("/")[1] in RESERVED_PATHS:
            yield Broken(("path",), f"the path {self.path!r} belongs to the gateway itself", "choose another one")


class Turns(Spec):
    """What calls have in common that are made without a session and without a handle of a turn."""

    implicit: IdleTime = Field(
        IMPLICIT,
        description="Such calls of one caller with one credential share an implicit turn, for rules that look back; it "
        "ends when none was made for so long. 'off' makes each of them a turn of its own.",
    )

    def broken_rules(self) -> Iterable[Broken]:
        if self.implicit is not None and self.implicit > _LONGEST_IMPLICIT:
            yield Broken(("implicit",), "an implicit turn ends after 30 days at most", code="bad-duration")


class CatalogueSpec(Spec):
    """Which tools an audience gets, and how."""

    audience: Some[Principal] = Field(description="Who may connect at all; the policy decides each action.")
    pipeline: Maybe[Name] = Field(None, description="The Pipeline of its calls.")
    collision_policy: Maybe[Name] = Field(None, description="The CollisionPolicy of its names.")
    include: Some[CatalogueSelector] = Field(description="Tools that are in; any entry suffices.")
    exclude: Many[CatalogueSelector] = Field((), description="Tools that are out again; any entry suffices.")
    forbid_together: Many[Combination] = Field((), description="TrustFlags that must not meet in one catalogue.")
    waivers: Many[Waiver] = Field((), description="Exceptions from forbidTogether.")
    hidden: Many[Pattern] = Field((), description="Tools that can be called by name, but are not listed.")
    publish: Publish = Field(description="Where the catalogue is found.")
    turns: Maybe[Turns] = Field(None, description="Which calls belong together for rules that look back.")
    instructions: Maybe[Prose] = Field(None, description="What models are told about the catalogue.")

    def broken_rules(self) -> Iterable[Broken]:
        forbidden = {frozenset(flags) for flags in self.forbid_together}
        for index, waiver in enumerate(self.waivers):
            if frozenset(waiver.forbid_together) not in forbidden:
                yield Broken(
                    ("waivers", index, "forbidTogether"),
                    "the waiver lifts nothing",
                    "name a combination of spec.forbidTogether, or remove the waiver",
                )


class CatalogueDocument(Document):
    """The tools that an audience gets."""

    kind: Literal["Catalogue"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: CatalogueSpec = Field(description="Which tools, for whom, where.")
