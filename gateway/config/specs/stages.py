"""Options of the built-in stages: what `with` may say, one model per stage.

Which stages there are, and in which order they make sense, is said in `governance.stages`.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from gateway.config.specs.backends import ErrorWord
from gateway.config.specs.base import Broken, Many, Maybe, Some, Spec
from gateway.config.specs.common import CREDENTIAL_HEADERS
from gateway.config.specs.scalars import Duration, HeaderName, Name, Size

CacheKey = Literal["subject", "tenant", "catalogue", "arguments"]
_OF_THE_CONNECTION: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "content-type", "host", "te", "transfer-encoding"}
)
Count = Annotated[int, Field(ge=1)]
Attempts = Annotated[int, Field(ge=1, le=10)]


class NoOptions(Spec):
    """A stage that has nothing to choose."""


class LoopGuardOptions(Spec):
    """When a turn goes in circles."""

    same_call: Count = Field(3, description="Equal calls of a turn after which it is stopped.")


class CacheOptions(Spec):
    """How long answers are kept, and for whom they are the same."""

    for_: Duration = Field(description="How long an answer is used again.")
    by: Some[CacheKey] = Field(("subject", "arguments"), description="What must be equal for two calls to be equal.")


class IdempotencyOptions(Spec):
    """How a repeated request is known."""

    header: HeaderName = Field("idempotency-key", description="Header that carries the key to the backend.")
    keep: Duration = Field(timedelta(minutes=10), description="How long an outcome is remembered.")

    def broken_rules(self) -> Iterable[Broken]:
        if self.header.lower() in CREDENTIAL_HEADERS | _OF_THE_CONNECTION:
            message = f"the header {self.header} means something else, and callers choose their keys"
            yield Broken(("header",), message, "name the header that the service reads keys from")


class TimeoutOptions(Spec):
    """When to give up."""

    after: Duration = Field(description="Longest time for all that the stage wraps.")


class RetryOptions(Spec):
    """What is tried again, how often and how soon."""

    attempts: Attempts = Field(2, description="Attempts in all, the first one included.")
    causes: Some[ErrorWord] = Field(("unavailable",), description="Failures after which another attempt is made.")
    unless_flags: Many[Name] = Field((), description="TrustFlags of tools that are never tried again.")
    delay: Duration = Field(timedelta(milliseconds=200), description="Pause before the second attempt.")


class CircuitBreakerOptions(Spec):
    """When a backend counts as down, and when it is asked again."""

    open_after: Count = Field(5, description="Failures after which it is not asked any more.")
    within: Duration = Field(timedelta(seconds=30), description="Time in which these failures are counted.")
    probe_after: Duration = Field(timedelta(seconds=15), description="Pause before a single call may try it again.")


class ConcurrencyOptions(Spec):
    """How many calls run at once."""

    limit: Count = Field(description="Calls of a tool that may run at the same time.")


class InlineSmallResultsOptions(Spec):
    """What counts as small."""

    below: Maybe[Size] = Field(None, description="Size under which a result is shown where its class says nothing.")


STAGE_OPTIONS: Final[Mapping[str, type[Spec]]] = {
    "select-tools": NoOptions,
    "loop-guard": LoopGuardOptions,
    "gates": NoOptions,
    "cache": CacheOptions,
    "idempotency": IdempotencyOptions,
    "timeout": TimeoutOptions,
    "retry": RetryOptions,
    "circuit-breaker": CircuitBreakerOptions,
    "concurrency": ConcurrencyOptions,
    "inline-small-results": InlineSmallResultsOptions,
    "redact": NoOptions,
    "audit-summary": NoOptions,
}
"""The model of every built-in stage's options."""


def stage_options(name: str, data: Mapping[str, Any]) -> Spec:
    """The options of a built-in stage; raises pydantic's `ValidationError`, or `KeyError` for a stage unknown here."""
    return STAGE_OPTIONS[name].model_validate(data)
