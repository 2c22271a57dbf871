"""PolicyTest: cases of access decisions that must hold."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gateway.config.kinds.common_specs import (
    DocumentModel,
    JsonValue,
    ListOf,
    NonEmptyListOf,
    OnlyTrue,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SpecModel,
    check_exactly_one,
    exactly_one_schema,
)
from gateway.config.kinds.scalars import (
    Duration,
    Name,
    Role,
    SingleLineText,
    Size,
    Subject,
    Timestamp,
)


class CaseTokensSpec(SpecModel):
    """Defaults for all cases."""

    catalogue: OptionalField[Name] = Field(None, description="The Catalogue.")
    at: OptionalField[Timestamp] = Field(None, description="Date and time.")


class CaseCallerSpec(SpecModel):
    """The caller of a case."""

    subject: Subject = Field(description="The caller.")
    roles: ListOf[Role] = Field((), description="Roles in the caller's token.")
    tenant: OptionalField[Name] = Field(None, description="The caller's tenant.")


class EarlierCallSpec(SpecModel):
    """An earlier call of the turn."""

    tool: Name = Field(description="Tool that was called, by its name in the Catalogue.")
    with_: OptionalField[JsonValue] = Field(None, description="Its arguments.")
    times: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="Number of calls.")
    ago: Duration = Field(timedelta(0), description="Time before the case.")
    bytes: OptionalField[Size] = Field(None, description="Result size of each call.")


class CaseTurnSpec(SpecModel):
    """Earlier events of the turn."""

    saw: ListOf[Name] = Field((), description="TrustFlags of the tools that were called.")
    read: ListOf[Name] = Field((), description="ArtifactClasses of results that were read.")
    calls: ListOf[EarlierCallSpec] = Field((), description="Earlier calls, including their flags and artifact classes.")


class ExpectedReasonSpec(SpecModel):
    """The expected reason, so that a case cannot pass for another reason."""

    model_config = ConfigDict(json_schema_extra=exactly_one_schema("policy", "gate", "tier", "class"))

    policy: OptionalField[SingleLineText] = Field(None, description="Subject of the policy row that decided.")
    gate: OptionalField[Name] = Field(None, description="GateRule that decided.")
    tier: OptionalField[Name] = Field(None, description="TrustTier that decided.")
    class_: OptionalField[Name] = Field(None, description="ArtifactClass whose flow rule decided.")

    def check_rules(self) -> Iterable[RuleViolation]:
        given: dict[str, object | None] = {"policy": self.policy, "gate": self.gate, "tier": self.tier}
        yield from check_exactly_one({**given, "class": self.class_}, "a reason")


class ExpectationSpec(SpecModel):
    """The expected result."""

    model_config = ConfigDict(json_schema_extra=exactly_one_schema("decision", "tools"))

    decision: OptionalField[Literal["allow", "hold", "deny"]] = Field(None, description="The decision on the call.")
    because: OptionalField[ExpectedReasonSpec] = Field(None, description="Reason of the decision.")
    tools: OptionalField[ListOf[Name]] = Field(None, description="The exact set of listed tools.")

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_exactly_one({"decision": self.decision, "tools": self.tools}, "an expectation")
        if self.tools is not None and self.because is not None:
            yield RuleViolation(("because",), "only a decision has a reason", at_key=True)


class PolicyCaseSpec(SpecModel):
    """One request and its expected result."""

    model_config = ConfigDict(json_schema_extra=exactly_one_schema("call", "discover"))

    name: SingleLineText = Field(description="Statement that the case verifies, as a sentence.")
    as_: CaseCallerSpec = Field(description="The caller.")
    in_: OptionalField[Name] = Field(None, description="Catalogue, if it differs from 'given'.")
    at: OptionalField[Timestamp] = Field(None, description="Date and time, if they differ from 'given'.")
    turn: OptionalField[CaseTurnSpec] = Field(None, description="Earlier events of the turn.")
    call: OptionalField[Name] = Field(None, description="Tool that is called.")
    of: OptionalField[Name] = Field(None, description="Tool whose result a query tool reads, if it is ambiguous.")
    with_: OptionalField[JsonValue] = Field(None, description="Arguments of the call.")
    discover: OptionalField[OnlyTrue] = Field(None, description="List the visible tools instead of making a call.")
    expect: ExpectationSpec = Field(description="The expected result.")

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_exactly_one({"call": self.call, "discover": self.discover}, "a case")
        if self.call is None and self.with_ is not None:
            yield RuleViolation(("with",), "only a call has arguments", at_key=True)
        if self.call is None and self.of is not None:
            yield RuleViolation(("of",), "only a call reads the result of a tool", at_key=True)
        if self.discover and self.call is None and self.expect.tools is None:
            yield RuleViolation(("expect",), "a discover case expects 'tools'", code="missing-field", at_key=True)
        if self.call is not None and self.expect.decision is None:
            yield RuleViolation(("expect",), "a call expects a 'decision'", code="missing-field", at_key=True)


class PolicyTestSpec(SpecModel):
    """Cases and their defaults."""

    given: OptionalField[CaseTokensSpec] = Field(None, description="Defaults for all cases.")
    cases: NonEmptyListOf[PolicyCaseSpec] = Field(description="The cases.")

    def check_rules(self) -> Iterable[RuleViolation]:
        seen: set[str] = set()
        for index, case in enumerate(self.cases):
            if case.name in seen:
                yield RuleViolation(("cases", index, "name"), "another case has this name")
            seen.add(case.name)
            if case.in_ is None and (self.given is None or self.given.catalogue is None):
                yield RuleViolation(
                    ("cases", index), "a case needs 'in', or a catalogue in 'given'", code="missing-field", at_key=True
                )
            if case.at is None and (self.given is None or self.given.at is None):
                yield RuleViolation(
                    ("cases", index, "name"),
                    "a case needs 'at', or a time in 'given'",
                    "a fixed time makes the test repeatable",
                    code="missing-field",
                )


class PolicyTestDocument(DocumentModel):
    """Test cases of access decisions."""

    kind: Literal["PolicyTest"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: PolicyTestSpec = Field(description="The cases.")
