"""Checks before a start that need more than valid documents."""

import stat
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from gateway.app.project import LoadedProject
from gateway.app.settings import Settings
from gateway.config import OverlayDocument, truncate_line
from gateway.errors import ProgramError
from gateway.identity import Authenticator
from gateway.policy import GateRule, find_common_subject
from gateway.registries import Diagnostic, Snapshot, suggest_name

_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound
_NO_PROJECT: Final = frozenset({"missing-folder", "not-a-folder", "unreadable-folder", "no-documents"})


class StartRefused(ProgramError):
    code = "E_START_REFUSED"
    default_message = "the gateway does not start with this configuration"


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


def check_folder_permissions(folders: Iterable[Path]) -> None:
    """Raise for a folder that all users may write to: they could replace the files of the gateway."""
    for folder in sorted(folders):
        mode = folder.stat().st_mode if folder.exists() else 0
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StartRefused(f"all users may write to the data folder {folder}", help=f"run: chmod o-w {folder}")
