"""Checks before a start that need more than valid documents, and construction of identity providers."""

import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from gateway.app.project import LoadedProject
from gateway.app.secrets import Secrets
from gateway.app.settings import Settings
from gateway.config import (
    AnonymousProviderSpec,
    IdentityProviderDocument,
    JwtProviderSpec,
    OverlayDocument,
    TokenProviderSpec,
    truncate_line,
)
from gateway.errors import ProgramError
from gateway.identity import (
    AnonymousProvider,
    ApiToken,
    Authenticator,
    FileKeySettings,
    IdentityProvider,
    JwtProvider,
    TokenProvider,
    UrlKeySettings,
)
from gateway.policy import GateRule, find_common_subject
from gateway.registries import Diagnostic, Snapshot, suggest_name
from gateway.server import MIN_SECRET_BYTES, ChannelKey


def find_unreachable_approvals(assembled: LoadedProject) -> tuple[Diagnostic, ...]:
    """Return an error for each enforced rule whose calls no principal can approve; the gateway then does not start."""
    if assembled.access is None:
        return ()
    enforced = {rule.position for rule in _approval_rules(assembled.access.snapshot)}
    return tuple(
        replace(found, severity="error")
        for found in assembled.diagnostics
        if found.code == "nobody-approves" and found.position in enforced
    )


def self_approval_warning(snapshot: Snapshot) -> str | None:
    """Return a warning if all callers are one principal, as in a trial setup: held calls then cannot be approved."""
    principal, rules = find_common_subject(snapshot), _approval_rules(snapshot)
    if principal is None or not rules:
        return None
    names = ", ".join(rule.name for rule in rules)
    calls = f"calls held by {names} can never be approved"
    return f"all callers are {principal} and self-approval is not allowed, so {calls}"


def _approval_rules(snapshot: Snapshot) -> list[GateRule]:
    return [rule for rule in snapshot.gates.values() if rule.approval is not None and rule.mode == "enforce"]


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


_MAX_KEY: Final = 4096
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound
_NO_PROJECT: Final = frozenset({"missing-folder", "not-a-folder", "unreadable-folder", "no-documents"})


class StartRefused(ProgramError):
    code = "E_START_REFUSED"
    default_message = "the gateway does not start with this configuration"


def check_project_exists(assembled: LoadedProject, folder: Path) -> None:
    """Raise if there is no project, instead of reporting every name in the policies as unknown."""
    for found in assembled.diagnostics:
        if found.code in _NO_PROJECT and found.position.file == folder.as_posix():
            raise StartRefused(
                f"{folder}: {found.message}",
                help="name the project with --configs or GATEWAY_CONFIGS; gateway init writes one",
            )


def check_environment(assembled: LoadedProject, environment: str | None) -> None:
    """Raise if no overlay has the name of the environment: it is probably misspelled."""
    if environment is None or not any(found.code == "overlay-missing" for found in assembled.diagnostics):
        return
    names = sorted(
        each.spec.spec.environment
        for each in assembled.loaded.documents
        if isinstance(each.spec, OverlayDocument)
        and ("spec", "environment") not in each.source.substituted  # the value of a variable is not shown
    )
    listed = f"there are overlays for {', '.join(map(repr, names))}" if names else "add one, or name none"
    near = suggest_name(environment, names)
    raise StartRefused(
        f"there is no overlay for environment {truncate_line(environment)}", help=f"{near} {listed}" if near else listed
    )


def check_exposure(settings: Settings, identities: Authenticator) -> None:
    if settings.is_local:
        return
    if identities.allows_anonymous:
        raise StartRefused(
            f"identity of type none is for loopback only, but {settings.host} is not loopback",
            help="listen on 127.0.0.1, or name another IdentityProvider in the Gateway",
        )
    if not settings.public_url:
        raise StartRefused(
            "callers on other hosts need a public URL", help="set GATEWAY_PUBLIC_URL to the URL that they use"
        )


def refuse_shared_port(settings: Settings) -> None:
    """Raise if other gateways would share a port with callers."""
    place = settings.peer_place
    for host, port in ((settings.host, settings.port), (settings.admin_host, settings.admin_port)):
        if place is not None and port == place[1] and (host == place[0] or {host, place[0]} & _EVERY_ADDRESS):
            raise StartRefused(
                f"port {port} cannot serve both callers and other gateways",
                help="give GATEWAY_PEER_URL a separate port, such as 8079",
            )


def peer_key(settings: Settings) -> ChannelKey | None:
    """Return the key that gateways of one database authenticate with; `None` without a peer URL."""
    if settings.peer_url is None:
        return None
    path = settings.peer_key_file
    if path is None:
        raise StartRefused(
            "GATEWAY_PEER_URL needs a secret that the gateways share",
            help="set GATEWAY_PEER_KEY_FILE to a file with the same 32 random bytes or more for all of them",
        )
    try:
        with path.open("rb") as file:
            secret = file.read(_MAX_KEY + 1).rstrip(b"\r\n")
    except OSError as error:
        raise StartRefused(
            f"GATEWAY_PEER_KEY_FILE: {path} cannot be read ({type(error).__name__})",
            help="check its path and permissions",
        ) from None
    if not MIN_SECRET_BYTES <= len(secret) <= _MAX_KEY:
        raise StartRefused(
            f"GATEWAY_PEER_KEY_FILE: {path} has fewer than {MIN_SECRET_BYTES} bytes, or too many",
            help=f"write one with: openssl rand -hex {MIN_SECRET_BYTES} > {path}",
        )
    return ChannelKey(secret)


def check_folder_permissions(folders: Iterable[Path]) -> None:
    """Raise for a folder that all users may write to: they could replace the files of the gateway."""
    for folder in sorted(folders):
        mode = folder.stat().st_mode if folder.exists() else 0
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StartRefused(f"all users may write to the data folder {folder}", help=f"run: chmod o-w {folder}")
