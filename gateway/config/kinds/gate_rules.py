"""GateRule: a condition that calls must meet. Each check has a shape here and its judgement in `gateway.policy`."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field

from gateway.config.kinds.common_specs import (
    DocumentModel,
    JsonValue,
    ListOf,
    NonEmptyListOf,
    OnlyTrue,
    OptionalField,
    OwnedMetadata,
    PolicyAction,
    RuleViolation,
    SpecModel,
    ToolSelectorSpec,
)
from gateway.config.kinds.scalars import (
    ArgumentPath,
    CelExpression,
    ClosingTimeOfDay,
    Day,
    Duration,
    Name,
    NamePattern,
    PolicyObject,
    PrincipalName,
    Prose,
    SingleLineText,
    Size,
    TimeOfDay,
    TimeZone,
)
from gateway.policy import (
    ApprovalCheck,
    ArgumentsCheck,
    BudgetCheck,
    ConfirmationCheck,
    LoopCheck,
    PermissionCheck,
    QuotaCheck,
    RateCheck,
    Weekday,
    WindowCheck,
    WindowInterval,
    compile_condition,
)

CountBySpec = Literal["subject", "tenant", "tool", "catalogue"]
RefusalSpec = Literal["hold", "deny"]
Positive = Annotated[int, Field(ge=1)]

_MAX_RATE_PERIOD: Final = timedelta(hours=1)
_MAX_CONFIRMATION: Final = timedelta(hours=1)
_MAX_QUOTA_PERIOD: Final = timedelta(days=366)


class MatchSpec(ToolSelectorSpec):
    """Selects calls: all given keys must match; within a key, any entry matches.

    A rule that names tools, prompts or resources applies to those only. Query tools have the labels, non-effect flags,
    tier, upstream and class of the result that they read.
    """

    tools: ListOf[NamePattern] = Field((), description="Names or patterns of tools, and of query tools: artifact_grep.")
    prompts: ListOf[NamePattern] = Field((), description="Names or patterns of prompts: upstream.name.")
    resources: ListOf[NamePattern] = Field((), description="Names or patterns of groups of resources: upstream.name.")
    catalogues: ListOf[Name] = Field((), description="Catalogues of the call.")


class ApprovalReuseSpec(SpecModel):
    """When an approval applies to another call."""

    same_arguments: OnlyTrue = Field(True, description="Only a call with the same arguments reuses it; always true.")
    for_: Duration = Field(description="How long an approval can be reused after the decision.")


class Approvers(SpecModel):
    """Approvers of a call. The requester is never one of them."""

    from_: NonEmptyListOf[PrincipalName] = Field(description="Roles and subjects that may decide.")
    count: Positive = Field(1, description="Number of approvals that are required.")
    exclude_requester: OnlyTrue = Field(True, description="The requester cannot approve; always true.")
    timeout: Duration = Field(description="Time limit for a decision; afterwards the call is refused.")
    reason: SingleLineText = Field(description="Reason for the approval, shown to approvers.")
    show: ListOf[SingleLineText] = Field((), description="Arguments shown to approvers; others are hidden.")
    resolution: OptionalField[JsonValue] = Field(None, description="JSON Schema of the approver's answer.")
    reuse: OptionalField[ApprovalReuseSpec] = Field(None, description="When an approval applies to another call.")

    def check_rules(self) -> Iterable[RuleViolation]:
        people = {name for name in self.from_ if not name.startswith("role:")}
        if len(people) == len(self.from_) and self.count > len(people):
            yield RuleViolation(("count",), f"{self.count} approvals are required, but only {len(people)} can approve")
        if self.resolution is not None and self.resolution.get("type") != "object":
            yield RuleViolation(
                ("resolution",), "an answer must be an object", "write type: object at the top of the schema"
            )

    def to_check(self) -> ApprovalCheck:
        reuse_for = self.reuse.for_ if self.reuse else None
        asked = (self.from_, self.reason, self.count, self.timeout, self.show, self.resolution)
        return ApprovalCheck(*asked, reuse_for)


class ApprovalCheckSpec(Approvers):
    """Approvers decide. The requester is never one of them."""

    type: Literal["approval"] = Field(description="Approvers decide.")


class ConfirmationCheckSpec(SpecModel):
    """The caller confirms the call in their own client. This is no approval, because no other person decides."""

    type: Literal["confirmation"] = Field(description="The caller confirms the call.")
    reason: SingleLineText = Field(description="Reason for the confirmation, shown to the caller.")
    show: ListOf[SingleLineText] = Field((), description="Arguments shown to the caller; others are hidden.")
    timeout: Duration = Field(timedelta(minutes=10), description="Time limit for an answer, at most an hour.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.timeout > _MAX_CONFIRMATION:
            yield RuleViolation(
                ("timeout",), "a confirmation times out after an hour at most", "use type: approval for longer times"
            )

    def to_check(self) -> ConfirmationCheck:
        return ConfirmationCheck(self.reason, self.show, self.timeout)


class PermissionCheckSpec(SpecModel):
    """The policy must also allow an action on another object."""

    type: Literal["permission"] = Field(description="The policy must also allow an action on another object.")
    action: PolicyAction = Field("invoke", description="Action that the policy must allow.")
    object: PolicyObject = Field(description="Object of the action.")

    def to_check(self) -> PermissionCheck:
        return PermissionCheck(self.action, self.object)


class RateCheckSpec(SpecModel):
    """A rate limit, which protects the system from too many calls in a short time."""

    type: Literal["rate"] = Field(description="A rate limit.")
    limit: Positive = Field(description="Number of calls allowed per period.")
    per: Duration = Field(description="The period, at most an hour.")
    burst: OptionalField[Positive] = Field(None, description="Number of calls allowed at once; the limit if left out.")
    by: NonEmptyListOf[CountBySpec] = Field(("subject",), description="What is counted separately.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.per > _MAX_RATE_PERIOD:
            yield RuleViolation(
                ("per",), "the period of a rate is at most an hour", "use type: quota for longer budgets"
            )

    def to_check(self) -> RateCheck:
        return RateCheck(self.limit, self.per, self.burst, self.by)


class QuotaCheckSpec(SpecModel):
    """A quota of calls, or of the sum of an argument, over a long period. It survives restarts."""

    type: Literal["quota"] = Field(description="A quota over a long period.")
    limit: Positive = Field(description="Maximum number of calls, or maximum sum, per period.")
    per: Duration = Field(description="The period, from an hour to a year.")
    by: NonEmptyListOf[CountBySpec] = Field(("subject",), description="What is counted separately.")
    sum: OptionalField[ArgumentPath] = Field(
        None, description="Argument that is summed instead of counting calls: args.amount."
    )
    on_exhausted: RefusalSpec = Field("deny", description="Decision on calls beyond the limit.")
    approval: OptionalField[Approvers] = Field(
        None, description="Approvers of calls beyond the quota; requires onExhausted: hold."
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.per < _MAX_RATE_PERIOD:
            yield RuleViolation(("per",), "the period of a quota is at least an hour", "use type: rate for short times")
        if self.per > _MAX_QUOTA_PERIOD:
            yield RuleViolation(("per",), "the period of a quota is at most a year")
        if self.approval is not None and self.on_exhausted != "hold":
            yield RuleViolation(("approval",), "'approval' has no effect on denied calls", "write onExhausted: hold")

    def to_check(self) -> QuotaCheck:
        approval = None if self.approval is None else self.approval.to_check()
        return QuotaCheck(self.limit, self.per, self.by, self.on_exhausted, self.sum or (), approval)


class WindowIntervalSpec(SpecModel):
    """A time interval on some days of the week."""

    days: NonEmptyListOf[Weekday] = Field(description="Days of the week.")
    from_: TimeOfDay = Field(description="Opening time.")
    to: ClosingTimeOfDay = Field(description="Closing time.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.from_ >= self.to:
            yield RuleViolation(
                ("to",), "'to' is not later than 'from'", "write two entries for a window over midnight"
            )
        if len(set(self.days)) != len(self.days):
            yield RuleViolation(("days",), "a day is named twice")

    def to_interval(self) -> WindowInterval:
        return WindowInterval(frozenset(self.days), self.from_, self.to)


class WindowCheckSpec(SpecModel):
    """Calls are allowed only at certain hours."""

    type: Literal["window"] = Field(description="Only at certain hours.")
    timezone: TimeZone = Field(description="Time zone of the hours.")
    open: NonEmptyListOf[WindowIntervalSpec] = Field(description="When calls are allowed.")
    closed: ListOf[Day] = Field((), description="Days on which no call is allowed.")
    outside: RefusalSpec = Field("deny", description="Decision on calls outside these hours.")

    def to_check(self) -> WindowCheck:
        openings = tuple(each.to_interval() for each in self.open)
        return WindowCheck(ZoneInfo(self.timezone), openings, frozenset(self.closed), self.outside)


class ArgumentsCheckSpec(SpecModel):
    """The arguments must meet a condition."""

    type: Literal["arguments"] = Field(description="A condition on the arguments.")
    require: CelExpression = Field(description="CEL expression that must be true.")
    message: SingleLineText = Field(description="Message to the caller if it is false.")

    def to_check(self) -> ArgumentsCheck | None:
        """Return `None` if the expression does not compile, which another check reports."""
        condition, _ = compile_condition(self.require)
        return None if condition is None else ArgumentsCheck(condition, self.message)


MemoryScope = Literal["turn", "caller"]
WITHIN: Final = timedelta(hours=1)
_SCOPE: Final[Any] = Field(
    "turn",
    description="Which calls are counted together: a turn, or all calls of a caller. A new session starts a new turn.",
)
_WITHIN: Final[Any] = Field(None, description="Period in which calls of a caller are counted; 1h if left out.")


def _check_scope(scope: MemoryScope, within: timedelta | None) -> Iterable[RuleViolation]:
    if within is not None and scope == "turn":
        yield RuleViolation(("within",), "'within' requires scope: caller", "write scope: caller, or remove 'within'")
    if within is not None and within > _MAX_QUOTA_PERIOD:
        yield RuleViolation(("within",), "'within' is at most a year")


def _period(scope: MemoryScope, within: timedelta | None) -> timedelta | None:
    return (within or WITHIN) if scope == "caller" else None


class LoopCheckSpec(SpecModel):
    """The same call with the same arguments, repeated."""

    type: Literal["loop"] = Field(description="The same call, repeated.")
    same_call: Positive = Field(description="Number of times the same call may be made.")
    on_exceeded: RefusalSpec = Field("deny", description="Decision on the next call.")
    scope: MemoryScope = _SCOPE
    within: OptionalField[Duration] = _WITHIN

    def check_rules(self) -> Iterable[RuleViolation]:
        return _check_scope(self.scope, self.within)

    def to_check(self) -> LoopCheck:
        return LoopCheck(self.same_call, self.on_exceeded, _period(self.scope, self.within))


class BudgetCheckSpec(SpecModel):
    """The budget of a turn or of a caller."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["calls"]}, {"required": ["bytes"]}]})

    type: Literal["budget"] = Field(description="The budget of a turn or of a caller.")
    calls: OptionalField[Positive] = Field(None, description="Maximum number of calls.")
    bytes: OptionalField[Size] = Field(None, description="Maximum number of result bytes.")
    on_exhausted: RefusalSpec = Field("deny", description="Decision on calls beyond the limit.")
    scope: MemoryScope = _SCOPE
    within: OptionalField[Duration] = _WITHIN

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from _check_scope(self.scope, self.within)
        if self.calls is None and self.bytes is None:
            yield RuleViolation((), "a budget needs 'calls' or 'bytes'", code="missing-field", at_key=True)

    def to_check(self) -> BudgetCheck:
        return BudgetCheck(self.calls, self.bytes, self.on_exhausted, _period(self.scope, self.within))


GateCheckSpec = Annotated[
    ApprovalCheckSpec
    | ConfirmationCheckSpec
    | PermissionCheckSpec
    | RateCheckSpec
    | QuotaCheckSpec
    | WindowCheckSpec
    | ArgumentsCheckSpec
    | LoopCheckSpec
    | BudgetCheckSpec,
    Field(discriminator="type"),
]


class GateRuleSpec(SpecModel):
    """One rule. Rules have no order: deny overrides hold, and hold overrides allow."""

    description: Prose = Field(description="Purpose of the rule.")
    mode: Literal["enforce", "observe", "disabled"] = Field(
        "enforce", description="Whether the rule decides, is only recorded, or is disabled."
    )
    match: MatchSpec = Field(description="Calls that the rule applies to.")
    when: OptionalField[CelExpression] = Field(None, description="CEL expression that further restricts the calls.")
    check: GateCheckSpec = Field(description="Check that such a call must pass.")
    hold_for: Duration = Field(
        timedelta(seconds=45), description="How long a held call waits before it returns that a decision is pending."
    )


class GateRuleDocument(DocumentModel):
    """A check that selected calls must pass."""

    kind: Literal["GateRule"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: GateRuleSpec = Field(description="The rule.")
