"""GateRule: which calls are looked at more closely, and what is asked of them."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from gateway.config.specs.base import Broken, Many, Maybe, OnlyTrue, Some, Spec
from gateway.config.specs.common import Action, Document, Json, OwnedMetadata, Selector
from gateway.config.specs.scalars import (
    ArgumentPath,
    Clock,
    ClosingClock,
    Day,
    Duration,
    Expression,
    Line,
    Name,
    Pattern,
    PolicyObject,
    Principal,
    Prose,
    Size,
    TimeZone,
)

CountBy = Literal["subject", "tenant", "tool", "catalogue"]
Refusal = Literal["hold", "deny"]
WeekDay = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
Positive = Annotated[int, Field(ge=1)]

_LONGEST_RATE: Final = timedelta(hours=1)
_LONGEST_QUESTION: Final = timedelta(hours=1)
_LONGEST_QUOTA: Final = timedelta(days=366)


class Match(Selector):
    """Chooses calls: all given keys must hold; within a key, any entry.

    A rule that names tools, prompts or resources is about what it names. Query tools have the labels, flags without
    effects, tier, upstream and class of the result that they read.
    """

    tools: Many[Pattern] = Field((), description="Names or patterns of tools, and of query tools: artifact_grep.")
    prompts: Many[Pattern] = Field((), description="Names or patterns of prompts: upstream.name.")
    resources: Many[Pattern] = Field((), description="Names or patterns of groups of resources: upstream.name.")
    catalogues: Many[Name] = Field((), description="Catalogues through which the call comes.")


class Reuse(Spec):
    """When an approval counts for another call."""

    same_arguments: OnlyTrue = Field(True, description="Only for the very same call; there is no other choice.")
    for_: Duration = Field(description="How long after the decision.")


class Approvers(Spec):
    """Who decides about a call, and how. The requester is never one of them."""

    from_: Some[Principal] = Field(description="Who may decide.")
    count: Positive = Field(1, description="How many of them must agree.")
    exclude_requester: OnlyTrue = Field(True, description="The requester cannot approve; there is no other choice.")
    timeout: Duration = Field(description="How long a decision is waited for; afterwards the call is refused.")
    reason: Line = Field(description="Why approval is asked for, as approvers read it.")
    show: Many[Line] = Field((), description="Arguments that approvers see; the others stay hidden.")
    resolution: Maybe[Json] = Field(None, description="JSON Schema of a valid answer.")
    reuse: Maybe[Reuse] = Field(None, description="When an approval counts for another call.")

    def broken_rules(self) -> Iterable[Broken]:
        people = {name for name in self.from_ if not name.startswith("role:")}
        if len(people) == len(self.from_) and self.count > len(people):
            yield Broken(("count",), f"{self.count} approvals are asked for, but only {len(people)} can approve")
        if self.resolution is not None and self.resolution.get("type") != "object":
            yield Broken(("resolution",), "an answer is an object", "write type: object at the top of the schema")


class ApprovalCheck(Approvers):
    """People decide. The requester is never one of them."""

    type: Literal["approval"] = Field(description="People decide.")


class ConfirmationCheck(Spec):
    """Whoever calls confirms the call themselves, in their own client. That is no approval: nobody else looks at it."""

    type: Literal["confirmation"] = Field(description="Whoever calls confirms the call.")
    reason: Line = Field(description="Why they are asked, as they read it.")
    show: Many[Line] = Field((), description="Arguments that they see; the others stay hidden.")
    timeout: Duration = Field(timedelta(minutes=10), description="How long it can be answered, up to an hour.")

    def broken_rules(self) -> Iterable[Broken]:
        if self.timeout > _LONGEST_QUESTION:
            yield Broken(("timeout",), "a question is open for an hour at most", "let people approve who take longer")


class PermissionCheck(Spec):
    """The policy is asked about another object too."""

    type: Literal["permission"] = Field(description="The policy is asked about another object.")
    action: Action = Field("invoke", description="Action that the caller must be allowed.")
    object: PolicyObject = Field(description="Object on which the action must be allowed.")


class RateCheck(Spec):
    """Protects the system: so many calls in a short time."""

    type: Literal["rate"] = Field(description="So many calls in a short time.")
    limit: Positive = Field(description="Calls that are let through in that time.")
    per: Duration = Field(description="The time, at most an hour.")
    burst: Maybe[Positive] = Field(None, description="Calls that may come at once; without it, the limit.")
    by: Some[CountBy] = Field(("subject",), description="What is counted apart.")

    def broken_rules(self) -> Iterable[Broken]:
        if self.per > _LONGEST_RATE:
            yield Broken(("per",), "a rate is counted over an hour at most", "use type: quota for longer budgets")


class QuotaCheck(Spec):
    """A budget: so many calls in a long time, or so much of an argument, remembered over restarts."""

    type: Literal["quota"] = Field(description="A budget that is remembered.")
    limit: Positive = Field(description="Calls in that time, or the largest sum.")
    per: Duration = Field(description="The time, from an hour to a year.")
    by: Some[CountBy] = Field(("subject",), description="What is counted apart.")
    sum: Maybe[ArgumentPath] = Field(
        None, description="An argument that is added up instead of counting calls: args.amount."
    )
    on_exhausted: Refusal = Field("deny", description="What happens to calls beyond the budget.")
    approval: Maybe[Approvers] = Field(
        None, description="Who decides about calls beyond the budget; it needs onExhausted: hold."
    )

    def broken_rules(self) -> Iterable[Broken]:
        if self.per < _LONGEST_RATE:
            yield Broken(("per",), "a quota is counted over an hour at least", "use type: rate for short times")
        if self.per > _LONGEST_QUOTA:
            yield Broken(("per",), "a quota is counted over a year at most")
        if self.approval is not None and self.on_exhausted != "hold":
            yield Broken(("approval",), "nobody is asked about calls that are denied", "write onExhausted: hold")


class Opening(Spec):
    """Some hours of some days of the week."""

    days: Some[WeekDay] = Field(description="Days of the week.")
    from_: Clock = Field(description="First minute.")
    to: ClosingClock = Field(description="Minute at which it closes.")

    def broken_rules(self) -> Iterable[Broken]:
        if self.from_ >= self.to:
            yield Broken(("to",), "'to' is not later than 'from'", "write two entries for a window over midnight")
        if len(set(self.days)) != len(self.days):
            yield Broken(("days",), "a day is named twice")


class WindowCheck(Spec):
    """Only at certain hours."""

    type: Literal["window"] = Field(description="Only at certain hours.")
    timezone: TimeZone = Field(description="Time zone of the hours.")
    open: Some[Opening] = Field(description="When calls pass.")
    closed: Many[Day] = Field((), description="Days on which nothing passes.")
    outside: Refusal = Field("deny", description="What happens to calls outside these hours.")


class ArgumentsCheck(Spec):
    """The arguments must fulfil a condition."""

    type: Literal["arguments"] = Field(description="A condition on the arguments.")
    require: Expression = Field(description="CEL expression that must be true.")
    message: Line = Field(description="What the caller reads when it is not.")


MemoryScope = Literal["turn", "caller"]
WITHIN: Final = timedelta(hours=1)
_SCOPE: Final[Any] = Field(
    "turn",
    description="What is counted together: one turn, or all calls of a caller. A new session begins a new turn.",
)
_WITHIN: Final[Any] = Field(None, description="The time in which calls of a caller are counted; 1h if left out.")


def _broken_scope(scope: MemoryScope, within: timedelta | None) -> Iterable[Broken]:
    if within is not None and scope == "turn":
        yield Broken(("within",), "a turn is counted from its beginning to its end", "write scope: caller")
    if within is not None and within > _LONGEST_QUOTA:
        yield Broken(("within",), "calls of a caller are counted over a year at most")


class LoopCheck(Spec):
    """The same call with the same arguments, again and again."""

    type: Literal["loop"] = Field(description="The same call again and again.")
    same_call: Positive = Field(description="How often the same call may be made.")
    on_exceeded: Refusal = Field("deny", description="What happens to the next one.")
    scope: MemoryScope = _SCOPE
    within: Maybe[Duration] = _WITHIN

    def broken_rules(self) -> Iterable[Broken]:
        return _broken_scope(self.scope, self.within)


class BudgetCheck(Spec):
    """What one turn, or one caller, may use."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["calls"]}, {"required": ["bytes"]}]})

    type: Literal["budget"] = Field(description="What one turn, or one caller, may use.")
    calls: Maybe[Positive] = Field(None, description="Calls.")
    bytes: Maybe[Size] = Field(None, description="Result bytes.")
    on_exhausted: Refusal = Field("deny", description="What happens to calls beyond the budget.")
    scope: MemoryScope = _SCOPE
    within: Maybe[Duration] = _WITHIN

    def broken_rules(self) -> Iterable[Broken]:
        yield from _broken_scope(self.scope, self.within)
        if self.calls is None and self.bytes is None:
            yield Broken((), "a budget needs 'calls' or 'bytes'", code="missing-field", at_key=True)


Check = Annotated[
    ApprovalCheck
    | ConfirmationCheck
    | PermissionCheck
    | RateCheck
    | QuotaCheck
    | WindowCheck
    | ArgumentsCheck
    | LoopCheck
    | BudgetCheck,
    Field(discriminator="type"),
]


class GateRuleSpec(Spec):
    """One rule. Rules have no order: deny beats hold beats allow."""

    description: Prose = Field(description="What the rule is for.")
    mode: Literal["enforce", "observe", "disabled"] = Field(
        "enforce", description="Whether the rule decides, is only recorded, or rests."
    )
    match: Match = Field(description="Which calls the rule is about.")
    when: Maybe[Expression] = Field(None, description="CEL expression that narrows them further.")
    check: Check = Field(description="What is asked of such a call.")
    hold_for: Duration = Field(
        timedelta(seconds=45), description="How long a held call waits before it answers that a decision is pending."
    )


class GateRuleDocument(Document):
    """Which calls are looked at more closely, and what is asked of them."""

    kind: Literal["GateRule"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: GateRuleSpec = Field(description="The rule.")
