"""Gateway, Storage and Telemetry: the parts of an installation.

Ports, log levels and folders are settings of the process, because many processes share the same documents.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from ipaddress import ip_address
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from gateway.config.kinds.attestations import AccessReviewSpec
from gateway.config.kinds.common_specs import (
    AuthSpec,
    DocumentModel,
    ListOf,
    NonEmptyListOf,
    OnlyTrue,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SecretSpec,
    SpecModel,
)
from gateway.config.kinds.scalars import (
    Duration,
    FilePath,
    Name,
    PrivateNetwork,
    SingleLineText,
    UrlText,
)

_MIN_ANCHOR_INTERVAL: Final = timedelta(seconds=1)
_MAX_ANCHOR_INTERVAL: Final = timedelta(days=1)


class AuditAnchorsSpec(SpecModel):
    """Signed checkpoints of the decision log, stored where a person who can change the log cannot change them."""

    path: FilePath = Field(description="File to append to, relative to the working directory; its folder must exist.")
    signing_key: SecretSpec = Field(
        description="Ed25519 private key in PEM; create one with gateway audit keygen FILE."
    )
    every: Duration = Field(timedelta(seconds=60), description="Maximum time until an entry is anchored.")
    entries: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1000, description="Maximum number of entries between two anchors."
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        if not _MIN_ANCHOR_INTERVAL <= self.every <= _MAX_ANCHOR_INTERVAL:
            yield RuleViolation(
                ("every",), "the interval of anchors must be between 1s and 1d", "60s is usual", "bad-duration"
            )


class AuditSpec(SpecModel):
    """The decision log. A call whose entry cannot be written does not run."""

    key: OptionalField[SecretSpec] = Field(
        None,
        description="Key of the hashes of arguments and results, 32 random bytes; create one with gateway audit keygen "
        "--for contents FILE. Without it, each process generates its own, and their hashes cannot be compared.",
    )
    anchors: OptionalField[AuditAnchorsSpec] = Field(
        None, description="Where anchors are stored; without them, a truncated or rewritten log is not detected."
    )
    required: OnlyTrue = Field(True, description="A call runs only if its entry was written; always true.")


def is_confidential_url(url: str) -> bool:
    """Whether data sent to the URL cannot be read or changed on the network: https, or this host."""
    return url.startswith("https:") or _is_this_host(urlsplit(url).hostname or "")


def _is_this_host(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


WebhookEventName = Literal["requested", "decided", "expired"]


class WebhookSpec(SpecModel):
    """A webhook about approvals. Messages contain names and a link, never arguments, and decide nothing."""

    name: Name = Field(description="Name in logs and in the status.")
    url: UrlText = Field(description="URL to which messages are posted; https, unless it is on this host.")
    secret: SecretSpec = Field(description="Key that signs messages, as in the Standard Webhooks specification.")
    events: NonEmptyListOf[WebhookEventName] = Field(
        ("requested", "decided", "expired"), description="Events that are sent."
    )
    networks: ListOf[PrivateNetwork] = Field(
        (), description="Private networks that the host may resolve to; without them, only public addresses are used."
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        if not is_confidential_url(self.url):
            yield RuleViolation(("url",), "messages to other hosts require https", "write https://", "bad-url")


def check_unique_names(webhooks: Sequence[WebhookSpec]) -> Iterable[RuleViolation]:
    """Report duplicate names of webhooks. `path` starts at the parent of the list."""
    known: set[str] = set()
    for index, webhook in enumerate(webhooks):
        if webhook.name in known:
            message = "two webhooks have the same name"
            yield RuleViolation(("webhooks", index, "name"), message, "give each its own name")
        known.add(webhook.name)


class GatewayDefaults(SpecModel):
    """Defaults for documents that leave a setting out."""

    pipeline: Name = Field(description="Pipeline of catalogues without one.")
    collision_policy: Name = Field(description="CollisionPolicy of catalogues without one.")
    tier: Name = Field(description="TrustTier of tools without one.")
    catalogue: OptionalField[Name] = Field(None, description="Catalogue of callers that do not select one.")


class ReloadSpec(SpecModel):
    """Checks before a reload."""

    run_policy_tests: bool = Field(False, description="Whether a reload is refused when a policy test fails.")


class GatewaySpec(SpecModel):
    """The parts of this installation; there is exactly one Gateway."""

    defaults: GatewayDefaults = Field(description="Defaults for documents that leave a setting out.")
    identity: NonEmptyListOf[Name] = Field(description="IdentityProviders, in the order in which they are tried.")
    storage: Name = Field(description="The Storage in use.")
    telemetry: OptionalField[Name] = Field(
        None, description="The Telemetry in use; without one, only OTEL_* variables apply."
    )
    reload: OptionalField[ReloadSpec] = Field(None, description="Checks before a reload.")
    audit: OptionalField[AuditSpec] = Field(None, description="The decision log.")
    webhooks: ListOf[WebhookSpec] = Field((), description="Webhooks about approvals.")
    access_review: OptionalField[AccessReviewSpec] = Field(
        None, description="Attestations that owners must write; without it, none is required."
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_unique_names(self.webhooks)


class OtlpHttpExporter(SpecModel):
    """OTLP over HTTP."""

    type: Literal["otlp-http"] = Field(description="OTLP over HTTP.")
    endpoint: OptionalField[UrlText] = Field(
        None, description="URL of the collector, without the path of the signal; by default, from OTEL_* variables."
    )
    auth: OptionalField[AuthSpec] = Field(None, description="Credentials for the collector.")


class OtlpGrpcExporter(SpecModel):
    """OTLP over gRPC."""

    type: Literal["otlp-grpc"] = Field(description="OTLP over gRPC; needs the optional packages.")
    endpoint: OptionalField[UrlText] = Field(
        None, description="URL of the collector; by default, from OTEL_* variables."
    )
    auth: OptionalField[AuthSpec] = Field(None, description="Credentials for the collector.")


class ConsoleExporter(SpecModel):
    """Lines on standard error."""

    type: Literal["console"] = Field(description="Lines on standard error.")


class FileExporter(SpecModel):
    """JSON lines in a file."""

    type: Literal["file"] = Field(description="JSON lines in a file.")
    path: FilePath = Field(description="File to append to, relative to the working directory.")


class NoneExporter(SpecModel):
    """Nothing is exported."""

    type: Literal["none"] = Field(description="Nothing is exported.")


ExporterSpec = Annotated[
    OtlpHttpExporter | OtlpGrpcExporter | ConsoleExporter | FileExporter | NoneExporter, Field(discriminator="type")
]


class SamplingSpec(SpecModel):
    """Which traces are recorded."""

    ratio: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Share of traces that is recorded.")
    always: ListOf[Literal["error", "denied", "held"]] = Field(
        ("error", "denied", "held"), description="Outcomes that are always recorded, regardless of the ratio."
    )


class TracesSpec(SpecModel):
    """Spans."""

    exporter: OptionalField[ExporterSpec] = Field(
        None, description="Destination of spans; by default, from OTEL_* variables."
    )
    sample: OptionalField[SamplingSpec] = Field(None, description="Which traces are recorded.")
    detail: Literal["minimal", "normal", "full"] = Field(
        "normal", description="Whether stages and waits of a call are left out, events of its span, or spans."
    )


class MetricsSpec(SpecModel):
    """Metrics."""

    exporter: ExporterSpec = Field(description="Destination of metrics.")
    every: Duration = Field(timedelta(seconds=60), description="Export interval.")


class LogsSpec(SpecModel):
    """Log records, including start records."""

    exporter: OptionalField[ExporterSpec] = Field(
        None, description="Destination of log records; by default, that of spans."
    )


class CaptureSpec(SpecModel):
    """Content of calls that telemetry may contain."""

    arguments: Literal["none", "keys", "values"] = Field("keys", description="Recorded parts of arguments.")
    results: Literal["none", "values"] = Field("none", description="Recorded parts of results.")
    callers: Literal["hash", "name"] = Field("hash", description="Whether spans have the names of callers, too.")


class TelemetrySpec(SpecModel):
    """Traces, metrics and logs, and their destinations."""

    service: SingleLineText = Field("agent-gateway", description="Service name on every signal.")
    start_records: bool = Field(
        True, description="Whether the start of a call is logged immediately, not only its end."
    )
    resource: dict[Name, SingleLineText] = Field({}, description="Resource attributes on every signal.")
    traces: OptionalField[TracesSpec] = Field(None, description="Spans.")
    metrics: OptionalField[MetricsSpec] = Field(None, description="Metrics.")
    logs: OptionalField[LogsSpec] = Field(None, description="Log records.")
    capture: OptionalField[CaptureSpec] = Field(None, description="Content of calls that may be recorded.")
    baggage: ListOf[SingleLineText] = Field((), description="W3C baggage keys that are accepted and propagated.")


class GatewayDocument(DocumentModel):
    """The parts of this installation; there is exactly one Gateway."""

    kind: Literal["Gateway"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: GatewaySpec = Field(description="The parts of the installation.")


class TelemetryDocument(DocumentModel):
    """Traces, metrics and logs, and their destinations."""

    kind: Literal["Telemetry"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: TelemetrySpec = Field(description="Traces, metrics and logs, and their destinations.")
