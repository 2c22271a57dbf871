"""Gateway, IdentityProvider, Storage and Telemetry: what an installation is made of.

Ports, log levels and folders are settings of the process, not configuration: the same documents run in many processes.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from gateway.config.specs.audit import Audit
from gateway.config.specs.base import Broken, Many, Maybe, Some, Spec, exactly_one, one_of_missing
from gateway.config.specs.common import Auth, Document, OwnedMetadata, Secret
from gateway.config.specs.hosts import is_private
from gateway.config.specs.scalars import Day, Duration, FilePath, Line, Name, ObjectPrefix, Role, Subject, Text, Url
from gateway.config.specs.webhooks import Webhook, names_taken_twice

_MOST_SKEW: Final = timedelta(seconds=60)
"""A token that ended counts that much longer."""

SubjectPrefix = Annotated[
    str,
    Text("a prefix", 'write one of "user:", "agent:", "service:"', r"(?:user|agent|service):", code="bad-name"),
]

TraceUse = Literal["parent", "link"]
_TRACE = "What becomes of the trace that a caller names: calls go on in it, or are only linked to it."


class GatewayDefaults(Spec):
    """What counts where a document does not say."""

    pipeline: Name = Field(description="Pipeline of catalogues that name none.")
    collision_policy: Name = Field(description="CollisionPolicy of catalogues that name none.")
    tier: Name = Field(description="TrustTier of tools that nobody has judged.")
    catalogue: Maybe[Name] = Field(None, description="Catalogue of callers that name none.")


class Reload(Spec):
    """What a reload must pass."""

    run_policy_tests: bool = Field(False, description="Whether a reload is refused when a policy test fails.")


class GatewaySpec(Spec):
    """Binds names to roles in this installation; there is exactly one."""

    defaults: GatewayDefaults = Field(description="What counts where a document does not say.")
    identity: Some[Name] = Field(description="IdentityProviders, asked in this order.")
    storage: Name = Field(description="The Storage in use.")
    telemetry: Maybe[Name] = Field(None, description="The Telemetry in use; without one, only OTEL_* variables count.")
    reload: Maybe[Reload] = Field(None, description="What a reload must pass.")
    audit: Maybe[Audit] = Field(None, description="How the decision log is kept.")
    webhooks: Many[Webhook] = Field((), description="Who is told of approvals.")

    def broken_rules(self) -> Iterable[Broken]:
        yield from names_taken_twice(self.webhooks)


class KeySet(Spec):
    """Where the public keys of an issuer come from."""

    model_config = ConfigDict(json_schema_extra=exactly_one("fromFile", "fromUrl"))

    from_file: Maybe[FilePath] = Field(None, description="JWKS file, relative to the configuration folder.")
    from_url: Maybe[Url] = Field(None, description="JWKS address of the issuer; https, unless it is on this host.")

    def broken_rules(self) -> Iterable[Broken]:
        yield from one_of_missing({"fromFile": self.from_file, "fromUrl": self.from_url}, "a key set")
        if self.from_url is not None and not is_private(self.from_url):
            yield Broken(("fromUrl",), "keys are only fetched over https", "write https://", "bad-url")


class SubjectClaim(Spec):
    """Which claim names the caller."""

    claim: Line = Field("sub", description="Name of the claim.")
    prefix: SubjectPrefix = Field("user:", description="Put before the claim's value.")


class RoleClaim(Spec):
    """Which claim carries groups, and which role each group is."""

    claim: Line = Field(description="Name of the claim.")
    map: dict[Line, Role] = Field(description="Group to role; groups that are not listed grant nothing.")


class TenantClaim(Spec):
    """Which claim names the caller's tenant."""

    claim: Line = Field(description="Name of the claim.")


class JwtProviderSpec(Spec):
    """Callers bring a signed token of an issuer we trust."""

    type: Literal["jwt"] = Field(description="Signed tokens.")
    issuer: Url = Field(description="Issuer that a token must name.")
    audience: Some[Line] = Field(description="Audiences, of which a token must name one.")
    algorithms: Some[
        Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
    ] = Field(description="Signature algorithms that are accepted.")
    keys: KeySet = Field(description="Public keys of the issuer.")
    subject: Maybe[SubjectClaim] = Field(None, description="Which claim names the caller.")
    roles: Maybe[RoleClaim] = Field(None, description="Which roles a token carries.")
    tenant: Maybe[TenantClaim] = Field(None, description="Which claim names the tenant.")
    clock_skew: Duration = Field(
        timedelta(seconds=30), description="Difference between clocks that is forgiven, at most a minute."
    )
    trace: TraceUse = Field("link", description=_TRACE)

    def broken_rules(self) -> Iterable[Broken]:
        if self.clock_skew > _MOST_SKEW:
            yield Broken(("clockSkew",), "more than a minute is forgiven", "write at most 60s, and set the clocks")


class StaticToken(Spec):
    """One caller with a long-lived token, of which only the digest is known here."""

    subject: Subject = Field(description="Who the token stands for.")
    roles: Many[Role] = Field((), description="Roles of that caller.")
    tenant: Maybe[Name] = Field(None, description="Tenant of that caller.")
    sha256: Secret = Field(description="SHA-256 of the token, in hexadecimal digits.")
    expires: Day = Field(description="Last day on which the token is accepted.")


class TokenProviderSpec(Spec):
    """Callers bring a token from a short list."""

    type: Literal["token"] = Field(description="A list of tokens.")
    tokens: Some[StaticToken] = Field(description="The tokens.")
    trace: TraceUse = Field("link", description=_TRACE)


class NoneProviderSpec(Spec):
    """Every caller is one named principal; refused unless the gateway listens on loopback only."""

    type: Literal["none"] = Field(description="One principal for everybody, on loopback only.")
    subject: Subject = Field(description="The principal.")
    roles: Many[Role] = Field((), description="Its roles.")
    trace: TraceUse = Field("parent", description=_TRACE)


class Retain(Spec):
    """How long records are kept."""

    approvals: Maybe[Duration] = Field(None, description="Approvals, from the decision on.")
    audit: Maybe[Duration] = Field(None, description="The decision log; for ever, unless this is said.")
    quotas: Maybe[Duration] = Field(None, description="Counters of quotas.")
    calls: Maybe[Duration] = Field(None, description="Settled calls.")


class FileBlobs(Spec):
    """Artifact bytes in a folder."""

    type: Literal["files"] = Field(description="Files in a folder.")
    path: FilePath = Field(description="The folder, relative to the working directory.")


class S3Blobs(Spec):
    """Artifact bytes in an S3-compatible store."""

    type: Literal["s3"] = Field(description="An S3-compatible store.")
    bucket: Name = Field(description="Name of the bucket.")
    endpoint: Maybe[Url] = Field(None, description="Address of the store, if it is not the public one.")
    region: Maybe[Name] = Field(None, description="Region of the bucket.")
    prefix: Maybe[ObjectPrefix] = Field(None, description="What the names of all objects begin with.")
    access_key: Maybe[Secret] = Field(None, description="Access key; without keys, those of the environment count.")
    secret_key: Maybe[Secret] = Field(None, description="Secret key.")

    def broken_rules(self) -> Iterable[Broken]:
        if (self.access_key is None) != (self.secret_key is None):
            there, missing = ("accessKey", "secretKey") if self.secret_key is None else ("secretKey", "accessKey")
            help = f"write both, or none and let the environment say it: remove {there!r}"
            yield Broken((there,), f"{there!r} does nothing without {missing!r}", help, at_key=True)


Blobs = Annotated[FileBlobs | S3Blobs, Field(discriminator="type")]


class SqliteStorageSpec(Spec):
    """One SQLite file: enough for one process."""

    type: Literal["sqlite"] = Field(description="An SQLite file.")
    path: FilePath = Field(
        description="The file, relative to the working directory; it is created where it is missing."
    )
    retain: Maybe[Retain] = Field(None, description="How long records are kept.")
    blobs: Maybe[Blobs] = Field(None, description="Where artifact bytes go; without it, files beside the database.")


class PostgresStorageSpec(Spec):
    """A PostgreSQL database: for more than one process."""

    type: Literal["postgres"] = Field(description="A PostgreSQL database.")
    connection: Secret = Field(description="Connection string.")
    retain: Maybe[Retain] = Field(None, description="How long records are kept.")
    blobs: Blobs = Field(description="Where artifact bytes go.")


class OtlpHttpExporter(Spec):
    """OTLP over HTTP."""

    type: Literal["otlp-http"] = Field(description="OTLP over HTTP.")
    endpoint: Maybe[Url] = Field(
        None, description="Address of the collector, without the signal's path; without it, as OTEL_* variables say."
    )
    auth: Maybe[Auth] = Field(None, description="Credentials for the collector.")


class OtlpGrpcExporter(Spec):
    """OTLP over gRPC."""

    type: Literal["otlp-grpc"] = Field(description="OTLP over gRPC; needs the optional packages.")
    endpoint: Maybe[Url] = Field(None, description="Address of the collector; without it, as OTEL_* variables say.")
    auth: Maybe[Auth] = Field(None, description="Credentials for the collector.")


class ConsoleExporter(Spec):
    """Lines on the standard error output."""

    type: Literal["console"] = Field(description="Standard error output.")


class FileExporter(Spec):
    """JSON lines in a file."""

    type: Literal["file"] = Field(description="JSON lines in a file.")
    path: FilePath = Field(description="The file, relative to the working directory; it is appended to.")


class NoneExporter(Spec):
    """Nothing is exported."""

    type: Literal["none"] = Field(description="Nothing is exported.")


Exporter = Annotated[
    OtlpHttpExporter | OtlpGrpcExporter | ConsoleExporter | FileExporter | NoneExporter, Field(discriminator="type")
]


class Sample(Spec):
    """Which traces are kept."""

    ratio: Annotated[float, Field(ge=0, le=1)] = Field(1.0, description="Share of traces that is kept.")
    always: Many[Literal["error", "denied", "held"]] = Field(
        ("error", "denied", "held"), description="Outcomes that are kept whatever the ratio."
    )


class Traces(Spec):
    """Spans."""

    exporter: Maybe[Exporter] = Field(None, description="Where spans go; without it, where OTEL_* variables say.")
    sample: Maybe[Sample] = Field(None, description="Which traces are kept.")


class Metrics(Spec):
    """Metrics."""

    exporter: Exporter = Field(description="Where metrics go.")
    every: Duration = Field(timedelta(seconds=60), description="How often they are sent.")


class Logs(Spec):
    """Log records, among them start records."""

    exporter: Maybe[Exporter] = Field(None, description="Where log records go; without it, where spans go.")


class Capture(Spec):
    """What telemetry may carry of a call's content."""

    arguments: Literal["none", "keys", "values"] = Field("keys", description="What is kept of arguments.")
    results: Literal["none", "values"] = Field("none", description="What is kept of results.")


class TelemetrySpec(Spec):
    """What is observed, and where it goes."""

    service: Line = Field("agent-gateway", description="Name of the service on every signal.")
    start_records: bool = Field(True, description="Whether the start of a call is logged at once, not only its end.")
    resource: dict[Name, Line] = Field({}, description="Resource attributes on every signal.")
    traces: Maybe[Traces] = Field(None, description="Spans.")
    metrics: Maybe[Metrics] = Field(None, description="Metrics.")
    logs: Maybe[Logs] = Field(None, description="Log records.")
    capture: Maybe[Capture] = Field(None, description="What may be kept of a call's content.")
    baggage: Many[Line] = Field((), description="Keys of W3C baggage that are taken in and passed on.")


class GatewayDocument(Document):
    """Binds names to roles in this installation; there is exactly one."""

    kind: Literal["Gateway"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: GatewaySpec = Field(description="The parts of the installation.")


class IdentityProviderDocument(Document):
    """How callers prove who they are."""

    kind: Literal["IdentityProvider"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: JwtProviderSpec | TokenProviderSpec | NoneProviderSpec = Field(
        discriminator="type", description="How callers prove who they are."
    )


class StorageDocument(Document):
    """Where records, approvals and artifact bytes are kept."""

    kind: Literal["Storage"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: SqliteStorageSpec | PostgresStorageSpec = Field(discriminator="type", description="Where things are kept.")


class TelemetryDocument(Document):
    """What is observed, and where it goes."""

    kind: Literal["Telemetry"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Who the document is and who answers for it.")
    spec: TelemetrySpec = Field(description="What is observed, and where it goes.")
