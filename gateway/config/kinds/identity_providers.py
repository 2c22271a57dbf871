"""IdentityProvider: how callers authenticate, and which teams answer for them."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from gateway.config.kinds.common_specs import (
    DocumentModel,
    ListOf,
    NonEmptyListOf,
    OptionalField,
    OwnedMetadata,
    RuleViolation,
    SecretSpec,
    SpecModel,
    check_exactly_one,
    exactly_one_schema,
)
from gateway.config.kinds.installation import is_confidential_url
from gateway.config.kinds.scalars import (
    Day,
    Duration,
    FilePath,
    Name,
    Role,
    SingleLineText,
    Subject,
    TextScalar,
    UrlText,
)

_MAX_SKEW: Final = timedelta(seconds=60)
"""Maximum time for which an expired token is still accepted."""

SubjectPrefix = Annotated[
    str,
    TextScalar("a prefix", 'write one of "user:", "agent:", "service:"', r"(?:user|agent|service):", code="bad-name"),
]

_DEFAULT_PREFIX: Final = "user:"
TraceUse = Literal["parent", "link"]
_TRACE = "How the trace of a caller is used: as parent of the call's trace, or only as a link."


CallerOwners = dict[Subject, Name]
_OWNERS = "Team that answers for a caller, by its subject. Agents and services need one, people do not."


class KeySetSpec(SpecModel):
    """Source of an issuer's public keys."""

    model_config = ConfigDict(json_schema_extra=exactly_one_schema("fromFile", "fromUrl"))

    from_file: OptionalField[FilePath] = Field(None, description="JWKS file, relative to the configuration folder.")
    from_url: OptionalField[UrlText] = Field(
        None, description="JWKS URL of the issuer; https, unless it is on this host."
    )

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from check_exactly_one({"fromFile": self.from_file, "fromUrl": self.from_url}, "a key set")
        if self.from_url is not None and not is_confidential_url(self.from_url):
            yield RuleViolation(("fromUrl",), "keys must be fetched over https", "write https://", "bad-url")


class SubjectClaimSpec(SpecModel):
    """The claim that names the caller."""

    claim: SingleLineText = Field("sub", description="Name of the claim.")
    prefix: SubjectPrefix = Field(_DEFAULT_PREFIX, description="Prefix of the claim's value.")


class RoleClaimSpec(SpecModel):
    """The claim that contains groups, and the role of each group."""

    claim: SingleLineText = Field(description="Name of the claim.")
    map: dict[SingleLineText, Role] = Field(description="Roles by group; other groups grant nothing.")


class TenantClaimSpec(SpecModel):
    """The claim that names the caller's tenant."""

    claim: SingleLineText = Field(description="Name of the claim.")


def _check_owners(owners: CallerOwners, is_caller: Callable[[str], bool]) -> Iterable[RuleViolation]:
    """Report owners of subjects that no caller of the provider can have."""
    for subject in owners:
        if not is_caller(subject):
            help = "write it in the IdentityProvider of the caller, or remove it"
            yield RuleViolation(("owners", subject), "no caller of this provider has the subject", help, at_key=True)


class JwtProviderSpec(SpecModel):
    """Callers send a token that a trusted issuer signed."""

    type: Literal["jwt"] = Field(description="Signed tokens.")
    issuer: UrlText = Field(description="Required issuer of a token.")
    audience: NonEmptyListOf[SingleLineText] = Field(description="Accepted audiences; a token must name one.")
    algorithms: NonEmptyListOf[
        Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
    ] = Field(description="Accepted signature algorithms.")
    keys: KeySetSpec = Field(description="Public keys of the issuer.")
    subject: OptionalField[SubjectClaimSpec] = Field(None, description="The claim that names the caller.")
    roles: OptionalField[RoleClaimSpec] = Field(None, description="How roles are read from a token.")
    tenant: OptionalField[TenantClaimSpec] = Field(None, description="The claim that names the tenant.")
    clock_skew: Duration = Field(timedelta(seconds=30), description="Tolerated clock difference, at most a minute.")
    trace: TraceUse = Field("link", description=_TRACE)
    owners: CallerOwners = Field({}, description=_OWNERS)

    def check_rules(self) -> Iterable[RuleViolation]:
        prefix = self.subject.prefix if self.subject else _DEFAULT_PREFIX
        yield from _check_owners(self.owners, lambda subject: subject.startswith(prefix))
        if self.clock_skew > _MAX_SKEW:
            yield RuleViolation(
                ("clockSkew",), "clockSkew is more than a minute", "write at most 60s, and synchronise the clocks"
            )


class StaticTokenSpec(SpecModel):
    """One caller with a long-lived token. The gateway knows only the digest of the token."""

    subject: Subject = Field(description="Subject of the token.")
    roles: ListOf[Role] = Field((), description="Roles of the caller.")
    tenant: OptionalField[Name] = Field(None, description="Tenant of the caller.")
    sha256: SecretSpec = Field(description="SHA-256 of the token, in hexadecimal digits.")
    expires: Day = Field(description="Last day on which the token is accepted.")


class TokenProviderSpec(SpecModel):
    """Callers send a token from a list."""

    type: Literal["token"] = Field(description="A list of tokens.")
    tokens: NonEmptyListOf[StaticTokenSpec] = Field(description="The tokens.")
    trace: TraceUse = Field("link", description=_TRACE)
    owners: CallerOwners = Field({}, description=_OWNERS)

    def check_rules(self) -> Iterable[RuleViolation]:
        subjects = {token.subject for token in self.tokens}
        yield from _check_owners(self.owners, subjects.__contains__)


class AnonymousProviderSpec(SpecModel):
    """All callers are one principal; allowed only if the gateway listens on loopback."""

    type: Literal["none"] = Field(description="One principal for all callers, on loopback only.")
    subject: Subject = Field(description="The principal.")
    roles: ListOf[Role] = Field((), description="Its roles.")
    trace: TraceUse = Field("parent", description=_TRACE)
    owners: CallerOwners = Field({}, description=_OWNERS)

    def check_rules(self) -> Iterable[RuleViolation]:
        yield from _check_owners(self.owners, self.subject.__eq__)


class IdentityProviderDocument(DocumentModel):
    """How callers authenticate."""

    kind: Literal["IdentityProvider"] = Field(description="Kind of the document.")
    metadata: OwnedMetadata = Field(description="Name and owner of the document.")
    spec: JwtProviderSpec | TokenProviderSpec | AnonymousProviderSpec = Field(
        discriminator="type", description="How callers authenticate."
    )
