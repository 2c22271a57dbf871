"""Pipeline: the stages around a turn, a dispatch and a call, and one options model per built-in stage.

`gateway.registries.pipeline_stages` defines the stages and their valid order.
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from gateway.config.kinds.common_specs import (
    CREDENTIAL_HEADERS,
    DocumentModel,
    JsonValue,
    ListOf,
    NonEmptyListOf,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SpecModel,
)
from gateway.config.kinds.scalars import Duration, HeaderName, Name, Size
from gateway.config.kinds.tools import ErrorWord


class StageSpec(SpecModel):
    """One step of a pipeline."""

    use: Name = Field(description="Name of the stage.")
    with_: JsonValue = Field({}, description="Options of the stage, which the stage validates.")


class PipelineRefusalsSpec(SpecModel):
    """Tools that must not use the pipeline."""

    flags: NonEmptyListOf[Name] = Field(description="TrustFlags of such tools.")


class PipelineSpec(SpecModel):
    """Stages by phase, in the order in which they run."""

    turn_input: ListOf[StageSpec] = Field((), description="Before a turn begins.")
    dispatch_input: ListOf[StageSpec] = Field((), description="Before the calls of an iteration.")
    call: ListOf[StageSpec] = Field((), description="Around the backend of each call, after authorisation.")
    dispatch_output: ListOf[StageSpec] = Field((), description="After the calls of an iteration.")
    turn_output: ListOf[StageSpec] = Field((), description="After a turn.")
    refuses: OptionalField[PipelineRefusalsSpec] = Field(None, description="Tools that must not use the pipeline.")


class PipelineDocument(DocumentModel):
    """The stages around a turn, a dispatch and a call."""

    kind: Literal["Pipeline"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: PipelineSpec = Field(description="The stages.")


CacheKey = Literal["subject", "tenant", "catalogue", "arguments"]
_CONNECTION_HEADERS: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "content-type", "host", "te", "transfer-encoding"}
)
Count = Annotated[int, Field(ge=1)]
Attempts = Annotated[int, Field(ge=1, le=10)]


class NoOptions(SpecModel):
    """Options of a stage without options."""


class LoopGuardOptions(SpecModel):
    """When a turn counts as a loop."""

    same_call: Count = Field(3, description="Number of equal calls after which the turn is stopped.")


class CacheOptions(SpecModel):
    """How long results are cached, and which calls share them."""

    for_: Duration = Field(description="How long a cached result is used.")
    by: NonEmptyListOf[CacheKey] = Field(
        ("subject", "arguments"), description="Properties that must be equal for calls to share a result."
    )


class IdempotencyOptions(SpecModel):
    """How a repeated request is recognised."""

    header: HeaderName = Field("idempotency-key", description="Header that sends the key to the backend.")
    keep: Duration = Field(timedelta(minutes=10), description="How long an outcome is stored.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if self.header.lower() in CREDENTIAL_HEADERS | _CONNECTION_HEADERS:
            message = f"the header {self.header} has another meaning and must not contain a key that callers choose"
            yield RuleViolation(("header",), message, "name the header from which the service reads idempotency keys")


class TimeoutOptions(SpecModel):
    """The maximum duration."""

    after: Duration = Field(description="Maximum duration of everything that the stage wraps.")


class RetryOptions(SpecModel):
    """Which calls are retried, how often and when."""

    attempts: Attempts = Field(2, description="Number of attempts, including the first one.")
    causes: NonEmptyListOf[ErrorWord] = Field(("unavailable",), description="Failures that are retried.")
    unless_flags: ListOf[Name] = Field((), description="TrustFlags of tools that are never retried.")
    delay: Duration = Field(timedelta(milliseconds=200), description="Delay before the second attempt.")


class CircuitBreakerOptions(SpecModel):
    """When calls to a failing backend stop, and when they resume."""

    open_after: Count = Field(5, description="Number of failures that open the circuit.")
    within: Duration = Field(timedelta(seconds=30), description="Time window in which failures are counted.")
    probe_after: Duration = Field(timedelta(seconds=15), description="Delay before a single call probes the backend.")


class ConcurrencyOptions(SpecModel):
    """The limit of concurrent calls."""

    limit: Count = Field(description="Maximum number of concurrent calls of a tool.")


class InlineSmallResultsOptions(SpecModel):
    """Which results count as small."""

    below: OptionalField[Size] = Field(
        None, description="Size below which a result is shown inline if its artifact class sets no limit."
    )


STAGE_OPTIONS: Final[Mapping[str, type[SpecModel]]] = {
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
"""Options models by built-in stage."""


def parse_stage_options(name: str, data: Mapping[str, Any]) -> SpecModel:
    """Parse the options of a built-in stage. Raises `ValidationError`, or `KeyError` for any other stage."""
    return STAGE_OPTIONS[name].model_validate(data)
