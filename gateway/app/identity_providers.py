"""Build the identity providers of a project from their documents and secrets."""

from collections.abc import Iterable
from pathlib import Path

from gateway.app.secrets import Secrets
from gateway.config import AnonymousProviderSpec, IdentityProviderDocument, JwtProviderSpec, TokenProviderSpec
from gateway.identity import (
    AnonymousProvider,
    ApiToken,
    FileKeySettings,
    IdentityProvider,
    JwtProvider,
    TokenProvider,
    UrlKeySettings,
)


def build_providers(
    documents: Iterable[IdentityProviderDocument], *, secrets: Secrets, folder: Path
) -> list[IdentityProvider]:
    """Build the providers in order. Raises `GatewayError` for one that cannot be used."""
    return [_provider(document, secrets, folder) for document in documents]


def _provider(document: IdentityProviderDocument, secrets: Secrets, folder: Path) -> IdentityProvider:
    match document.spec:
        case JwtProviderSpec() as spec:
            return _jwt(spec, folder)
        case TokenProviderSpec(tokens=tokens, trace=trace):
            return TokenProvider(
                tuple(
                    ApiToken(
                        secrets.read(token.sha256).strip().lower(),
                        token.subject,
                        token.expires,
                        frozenset(token.roles),
                        token.tenant,
                        joins_traces=trace == "parent",
                        provider=document.metadata.name,
                    )
                    for token in tokens
                )
            )
        case AnonymousProviderSpec(subject=subject, roles=roles, trace=trace):
            return AnonymousProvider(subject, frozenset(roles), trace == "parent", document.metadata.name)


def _jwt(spec: JwtProviderSpec, folder: Path) -> JwtProvider:
    keys = spec.keys
    source = UrlKeySettings(keys.from_url) if keys.from_url else FileKeySettings(folder / (keys.from_file or ""))
    return JwtProvider(
        spec.issuer,
        frozenset(spec.audience),
        frozenset(spec.algorithms),
        source,
        subject_claim=spec.subject.claim if spec.subject else "sub",
        subject_prefix=spec.subject.prefix if spec.subject else "user:",
        role_claim=spec.roles.claim if spec.roles else None,
        roles=dict(spec.roles.map) if spec.roles else {},
        tenant_claim=spec.tenant.claim if spec.tenant else None,
        clock_skew=spec.clock_skew,
        joins_traces=spec.trace == "parent",
    )
