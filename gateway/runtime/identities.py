"""Identity providers of documents as the identity part takes them."""

from collections.abc import Iterable
from pathlib import Path

from gateway.config.specs.gateway import IdentityProviderDocument, JwtProviderSpec, NoneProviderSpec, TokenProviderSpec
from gateway.identity.providers import (
    ApiToken,
    JwtProvider,
    KeysFromFile,
    KeysFromUrl,
    NobodyProvider,
    Provider,
    TokenProvider,
)
from gateway.runtime.secrets import Secrets


def providers_of(documents: Iterable[IdentityProviderDocument], *, secrets: Secrets, folder: Path) -> list[Provider]:
    """In the order given. Raises what says which of them cannot be used."""
    return [_provider(document, secrets, folder) for document in documents]


def _provider(document: IdentityProviderDocument, secrets: Secrets, folder: Path) -> Provider:
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
        case NoneProviderSpec(subject=subject, roles=roles, trace=trace):
            return NobodyProvider(subject, frozenset(roles), trace == "parent", document.metadata.name)


def _jwt(spec: JwtProviderSpec, folder: Path) -> JwtProvider:
    keys = spec.keys
    source = KeysFromUrl(keys.from_url) if keys.from_url else KeysFromFile(folder / (keys.from_file or ""))
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
