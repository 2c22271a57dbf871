"""PolicyTest: who may do what, written down as cases that either hold or do not."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gateway.config.specs.base import Broken, Many, Maybe, OnlyTrue, Some, Spec, exactly_one, one_of_missing
from gateway.config.specs.common import Document, Json, OwnedMetadata
from gateway.config.specs.scalars import Duration, Line, Moment, Name, Role, Size, Subject


class Given(Spec):
    """What holds for each case that does not say otherwise."""

    catalogue: Maybe[Name] = Field(None, description="The Catalogue.")
    at: Maybe[Moment] = Field(None, description="The moment.")


class Caller(Spec):
    """Who asks."""

    subject: Subject = Field(description="The caller.")
    roles: Many[Role] = Field((), description="Roles that the caller's token carries.")
    tenant: Maybe[Name] = Field(None, description="The caller's tenant.")


class EarlierCall(Spec):
    """A call that the turn has made before."""

    tool: Name = Field(description="Tool that was called, by the name that the Catalogue gives it.")
    with_: Maybe[Json] = Field(None, description="Its arguments.")
    times: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="How often.")
    ago: Duration = Field(timedelta(0), description="How long before the moment of the case.")
    bytes: Maybe[Size] = Field(None, description="What each of them returned.")


class Turn(Spec):
    """What happened earlier in the turn."""

    saw: Many[Name] = Field((), description="TrustFlags of the tools that were called.")
    read: Many[Name] = Field((), description="ArtifactClasses of what was read.")
    calls: Many[EarlierCall] = Field((), description="Calls that were made, with all that they bring into the turn.")


class Because(Spec):
    """What decided, so that a case cannot hold for the wrong reason."""

    model_config = ConfigDict(json_schema_extra=exactly_one("policy", "gate", "tier", "class"))

    policy: Maybe[Line] = Field(None, description="Subject of the policy row that decided.")
    gate: Maybe[Name] = Field(None, description="GateRule that decided.")
    tier: Maybe[Name] = Field(None, description="TrustTier that decided.")
    class_: Maybe[Name] = Field(None, description="ArtifactClass whose flow decided.")

    def broken_rules(self) -> Iterable[Broken]:
        given: dict[str, object | None] = {"policy": self.policy, "gate": self.gate, "tier": self.tier}
        yield from one_of_missing({**given, "class": self.class_}, "a reason")


class Expect(Spec):
    """What must come out."""

    model_config = ConfigDict(json_schema_extra=exactly_one("decision", "tools"))

    decision: Maybe[Literal["allow", "hold", "deny"]] = Field(None, description="The decision on the call.")
    because: Maybe[Because] = Field(None, description="What decided.")
    tools: Maybe[Many[Name]] = Field(None, description="Exactly the tools that are discovered.")

    def broken_rules(self) -> Iterable[Broken]:
        yield from one_of_missing({"decision": self.decision, "tools": self.tools}, "an expectation")
        if self.tools is not None and self.because is not None:
            yield Broken(("because",), "only a decision has a reason", at_key=True)


class Case(Spec):
    """One question and the answer it must get."""

    model_config = ConfigDict(json_schema_extra=exactly_one("call", "discover"))

    name: Line = Field(description="What holds, as a sentence.")
    as_: Caller = Field(description="Who asks.")
    in_: Maybe[Name] = Field(None, description="The Catalogue, if not the given one.")
    at: Maybe[Moment] = Field(None, description="The moment, if not the given one.")
    turn: Maybe[Turn] = Field(None, description="What happened earlier in the turn.")
    call: Maybe[Name] = Field(None, description="Tool that is called.")
    of: Maybe[Name] = Field(None, description="Tool whose result a query tool reads, where several have it.")
    with_: Maybe[Json] = Field(None, description="Arguments of the call.")
    discover: Maybe[OnlyTrue] = Field(None, description="Ask which tools are seen instead.")
    expect: Expect = Field(description="What must come out.")

    def broken_rules(self) -> Iterable[Broken]:
        yield from one_of_missing({"call": self.call, "discover": self.discover}, "a case")
        if self.call is None and self.with_ is not None:
            yield Broken(("with",), "only a call has arguments", at_key=True)
        if self.call is None and self.of is not None:
            yield Broken(("of",), "only a call reads the result of a tool", at_key=True)
        if self.discover and self.call is None and self.expect.tools is None:
            yield Broken(("expect",), "discovering expects 'tools'", code="missing-field", at_key=True)
        if self.call is not None and self.expect.decision is None:
            yield Broken(("expect",), "a call expects a 'decision'", code="missing-field", at_key=True)


class PolicyTestSpec(Spec):
    """Cases and what they have in common."""

    given: Maybe[Given] = Field(None, description="What holds for each case that does not say otherwise.")
    cases: Some[Case] = Field(description="The cases.")

    def broken_rules(self) -> Iterable[Broken]:
        seen: set[str] = set()
        for index, case in enumerate(self.cases):
            if case.name in seen:
                yield Broken(("cases", index, "name"), "another case has this name")
            seen.add(case.name)
            if case.in_ is None and (self.given is None or self.given.catalogue is None):
                yield Broken(
                    ("cases", index), "a case needs 'in', or 'given' a catalogue", code="missing-field", at_key=True
                )
            if case.at is None and (self.given is None or self.given.at is None):
                yield Broken(
                    ("cases", index, "name"),
                    "a case needs 'at', or 'given' a moment",
                    "a test that reads the clock fails one day",
                    code="missing-field",
                )


class PolicyTestDocument(Document):
    """Cases about who may do what."""

    kind: Literal["PolicyTest"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: PolicyTestSpec = Field(description="The cases.")
