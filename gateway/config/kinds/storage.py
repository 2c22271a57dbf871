"""Storage: where records, approvals and artifact bytes are stored, for how long, and what replays need besides."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from gateway.config.kinds.common_specs import (
    DocumentModel,
    ListOf,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SecretSpec,
    SpecModel,
)
from gateway.config.kinds.scalars import Duration, FilePath, Name, NamePattern, ObjectPrefix, UrlText


class RetentionSpec(SpecModel):
    """How long records are retained."""

    approvals: OptionalField[Duration] = Field(None, description="Approvals, counted from the decision.")
    audit: OptionalField[Duration] = Field(None, description="The decision log; for ever if left out.")
    quotas: OptionalField[Duration] = Field(None, description="Counters of quotas.")
    calls: OptionalField[Duration] = Field(None, description="Completed calls.")


class FileBlobsSpec(SpecModel):
    """Artifact bytes in a folder."""

    type: Literal["files"] = Field(description="Files in a folder.")
    path: FilePath = Field(description="The folder, relative to the working directory.")


class S3BlobsSpec(SpecModel):
    """Artifact bytes in an S3-compatible store."""

    model_config = ConfigDict(
        json_schema_extra={"dependencies": {"accessKey": ["secretKey"], "secretKey": ["accessKey"]}}
    )

    type: Literal["s3"] = Field(description="An S3-compatible store.")
    bucket: Name = Field(description="Name of the bucket.")
    endpoint: OptionalField[UrlText] = Field(
        None, description="URL of the store, if it is not the public AWS endpoint."
    )
    region: OptionalField[Name] = Field(None, description="Region of the bucket.")
    prefix: OptionalField[ObjectPrefix] = Field(None, description="Prefix of all object names.")
    access_key: OptionalField[SecretSpec] = Field(
        None, description="Access key; without keys, those of the environment are used."
    )
    secret_key: OptionalField[SecretSpec] = Field(None, description="Secret key.")

    def check_rules(self) -> Iterable[RuleViolation]:
        if (self.access_key is None) != (self.secret_key is None):
            there, missing = ("accessKey", "secretKey") if self.secret_key is None else ("secretKey", "accessKey")
            help = f"write both keys, or remove {there!r} to use the keys of the environment"
            yield RuleViolation((there,), f"{there!r} requires {missing!r}", help, at_key=True)


Blobs = Annotated[FileBlobsSpec | S3BlobsSpec, Field(discriminator="type")]


class ReplaySpec(SpecModel):
    """What is stored of refused calls, so that `gateway replay` can decide them again.

    Without `tools` and `artifacts` it applies to all tools. What an artifact class masks, and what looks like a secret,
    is never stored. Records of calls that ran have their arguments anyway.
    """

    arguments: Literal["values", "masked", "none"] = Field(
        description="Arguments: all values; only numbers, booleans and values of an enumeration; or nothing."
    )
    tools: ListOf[NamePattern] = Field((), description="Names or patterns of tools to which this applies.")
    artifacts: ListOf[Name] = Field((), description="Artifact classes of tools to which this applies.")


class SqliteStorageSpec(SpecModel):
    """One SQLite file, for a single process."""

    type: Literal["sqlite"] = Field(description="An SQLite file.")
    path: FilePath = Field(description="The file, relative to the working directory; created if missing.")
    retain: OptionalField[RetentionSpec] = Field(None, description="How long records are retained.")
    replay: OptionalField[ReplaySpec] = Field(None, description="Arguments of refused calls that are stored.")
    blobs: OptionalField[Blobs] = Field(
        None, description="Where artifact bytes are stored; by default, in files next to the database."
    )


class PostgresStorageSpec(SpecModel):
    """A PostgreSQL database, for several processes."""

    type: Literal["postgres"] = Field(description="A PostgreSQL database.")
    connection: SecretSpec = Field(description="Connection string.")
    retain: OptionalField[RetentionSpec] = Field(None, description="How long records are retained.")
    replay: OptionalField[ReplaySpec] = Field(None, description="Arguments of refused calls that are stored.")
    blobs: Blobs = Field(description="Where artifact bytes are stored.")


class StorageDocument(DocumentModel):
    """Where records, approvals and artifact bytes are stored."""

    kind: Literal["Storage"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: SqliteStorageSpec | PostgresStorageSpec = Field(
        discriminator="type", description="The store and its settings."
    )
