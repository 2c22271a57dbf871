"""What a gateway does not start with, though its documents are sound: each tells what to do instead."""

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gateway.assembly import Assembled
from gateway.config.specs.overlays import OverlayDocument
from gateway.config.text import clipped
from gateway.errors import ProgramError
from gateway.governance.diagnostics import did_you_mean
from gateway.identity.identities import Identities
from gateway.runtime.peer_proof import LEAST_SECRET, ChannelKey
from gateway.runtime.settings import Settings

_MAX_KEY: Final = 4096
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - recognised, not bound
_NO_PROJECT: Final = frozenset({"missing-folder", "not-a-folder", "unreadable-folder", "no-documents"})


class StartRefused(ProgramError):
    code = "E_START_REFUSED"
    default_message = "the gateway does not start like this"


def refuse_no_project(assembled: Assembled, folder: Path) -> None:
    """Where there are no documents, nothing that policies name is known: that is not worth telling."""
    for found in assembled.diagnostics:
        if found.code in _NO_PROJECT and found.position.file == folder.as_posix():
            raise StartRefused(
                f"{folder}: {found.message}",
                help="name the project with --configs or GATEWAY_CONFIGS; gateway init writes one",
            )


def refuse_unknown_environment(assembled: Assembled, environment: str | None) -> None:
    """A name that no overlay has is more likely misspelled than an environment in which nothing differs."""
    if environment is None or not any(found.code == "overlay-missing" for found in assembled.diagnostics):
        return
    names = sorted(
        each.spec.spec.environment
        for each in assembled.loaded.documents
        if isinstance(each.spec, OverlayDocument)
        and ("spec", "environment") not in each.source.substituted  # else it is not shown
    )
    listed = f"there are overlays for {', '.join(map(repr, names))}" if names else "add one, or name none"
    near = did_you_mean(environment, names)
    raise StartRefused(
        f"there is no overlay for environment {clipped(environment)}", help=f"{near} {listed}" if near else listed
    )


def refuse_exposure(settings: Settings, identities: Identities) -> None:
    if settings.is_local:
        return
    if identities.is_open:
        raise StartRefused(
            f"identity of type none is for loopback only, and {settings.host} is not",
            help="listen on 127.0.0.1, or name another IdentityProvider in the Gateway",
        )
    if not settings.public_url:
        raise StartRefused(
            "callers from elsewhere need a public URL", help="set GATEWAY_PUBLIC_URL to how they reach the gateway"
        )


def refuse_shared_port(settings: Settings) -> None:
    """Gateways reach each other where nobody else does."""
    place = settings.peer_place
    for host, port in ((settings.host, settings.port), (settings.admin_host, settings.admin_port)):
        if place is not None and port == place[1] and (host == place[0] or {host, place[0]} & _EVERY_ADDRESS):
            raise StartRefused(
                f"port {port} cannot be for callers and for other gateways",
                help="give GATEWAY_PEER_URL a port of its own, such as 8079; it is not the data plane's",
            )


def peer_key(settings: Settings) -> ChannelKey | None:
    """What gateways of one database prove themselves with; `None` if others do not know this one."""
    if settings.peer_url is None:
        return None
    path = settings.peer_key_file
    if path is None:
        raise StartRefused(
            "GATEWAY_PEER_URL needs a secret that the gateways have in common",
            help="set GATEWAY_PEER_KEY_FILE to a file with the same 32 random bytes or more for all of them",
        )
    try:
        with path.open("rb") as file:
            secret = file.read(_MAX_KEY + 1).rstrip(b"\r\n")
    except OSError as error:
        raise StartRefused(
            f"GATEWAY_PEER_KEY_FILE: {path} cannot be read ({type(error).__name__})",
            help="check that it is there, and whose",
        ) from None
    if not LEAST_SECRET <= len(secret) <= _MAX_KEY:
        raise StartRefused(
            f"GATEWAY_PEER_KEY_FILE: {path} has fewer than {LEAST_SECRET} bytes, or too many",
            help=f"write one with: openssl rand -hex {LEAST_SECRET} > {path}",
        )
    return ChannelKey(secret)


def refuse_shared_folders(folders: Iterable[Path]) -> None:
    """What we write is ours alone, but where everybody may write, everybody may put something else in its place."""
    for folder in sorted(folders):
        mode = folder.stat().st_mode if folder.exists() else 0
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StartRefused(f"everybody may write to the data folder {folder}", help=f"run: chmod o-w {folder}")
