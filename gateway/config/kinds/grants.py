"""GrantPolicy: which roles callers can get for a short time, who can get them, for how long, and who approves."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.config.kinds.common_specs import (
    DocumentModel,
    NonEmptyListOf,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SpecModel,
)
from gateway.config.kinds.scalars import Duration, PrincipalName, Prose

_LONGEST: Final = timedelta(days=7)
_LONGEST_PERIOD: Final = timedelta(days=31)


class GrantPolicySpec(SpecModel):
    """What can be granted. The requester and the recipient of a grant never approve it."""

    description: Prose = Field(description="Purpose of the grants.")
    roles: NonEmptyListOf[PrincipalName] = Field(description="Roles that can be granted.")
    to: NonEmptyListOf[PrincipalName] = Field(
        description="Roles and subjects that can receive a grant; granted roles do not count."
    )
    approvers: NonEmptyListOf[PrincipalName] = Field(
        description="Roles and subjects that approve, refuse and revoke; granted roles do not count."
    )
    max_duration: Duration = Field(description="Longest duration of one grant, at most a week.")
    max_total: OptionalField[Duration] = Field(
        None, description="Longest time that one caller holds one role within a period; maxDuration if left out."
    )
    period: Duration = Field(timedelta(days=1), description="The period of maxTotal, at most 31 days.")
    max_active: Annotated[int, Field(ge=1, le=1000)] = Field(
        5, description="Maximum number of grants of the policy in force at once."
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        for index, role in enumerate(self.roles):
            if not role.startswith("role:"):
                yield RuleViolation(("roles", index), "only roles can be granted", "write role:NAME")
        if self.max_duration > _LONGEST:
            yield RuleViolation(
                ("maxDuration",), "a grant lasts at most a week", "give a policy row an end for longer times"
            )
        if self.period > _LONGEST_PERIOD:
            yield RuleViolation(("period",), "the period is at most 31 days")
        if self.max_total is not None and not self.max_duration <= self.max_total <= self.period:
            yield RuleViolation(("maxTotal",), "maxTotal is shorter than maxDuration, or longer than the period")
        elif self.max_total is None and self.max_duration > self.period:
            yield RuleViolation(("period",), "the period is shorter than maxDuration", "write a longer period")


class GrantPolicyDocument(DocumentModel):
    """Roles that callers can get for a short time, after an approval."""

    kind: Literal["GrantPolicy"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: GrantPolicySpec = Field(description="What can be granted, to whom, for how long, and who approves.")
