"""Settings of the decision log: the Gateway document with its secrets, and what the log cannot prove without them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from secrets import token_bytes
from typing import TypeVar

from gateway.app.secrets import Secrets
from gateway.audit import MIN_BYTES, ContentKey, SigningKey, WeakKey
from gateway.config import AuditSpec

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class AnchorPolicy:
    """The file, signing key and interval of anchors."""

    path: Path
    key: SigningKey
    every: timedelta
    entries: int


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """The audit settings of a Gateway with their secrets. `warnings` name what this log cannot prove."""

    key: ContentKey
    anchors: AnchorPolicy | None
    warnings: tuple[str, ...] = ()


def build_audit_settings(audit: AuditSpec | None, secrets: Secrets) -> AuditSettings:
    """Read the settings. Raises `SecretMissing`, or `WeakKey` for a weak key or one of another kind."""
    return AuditSettings(load_content_key(audit, secrets), _anchor_policy(audit, secrets), tuple(_warnings(audit)))


def load_content_key(audit: AuditSpec | None, secrets: Secrets) -> ContentKey:
    """Return the key of the hashes of arguments and results; a random one if the document names none."""
    if audit is None or audit.key is None:
        return ContentKey(token_bytes(MIN_BYTES).hex())
    return _read("audit.key", partial(ContentKey, secrets.read(audit.key)))


def _anchor_policy(audit: AuditSpec | None, secrets: Secrets) -> AnchorPolicy | None:
    if audit is None or audit.anchors is None:
        return None
    anchors = audit.anchors
    key = _read("audit.anchors.signingKey", partial(SigningKey.load, secrets.read(anchors.signing_key)))
    return AnchorPolicy(Path(anchors.path), key, anchors.every, anchors.entries)


def _read(field: str, load: Callable[[], Key]) -> Key:
    try:
        return load()
    except WeakKey as error:
        raise WeakKey(f"{field} of the Gateway: {error.message}", help=error.help) from None


def _warnings(audit: AuditSpec | None) -> list[str]:
    found = []
    if audit is None or audit.key is None:
        found.append("the Gateway names no audit.key: hashes in the log cannot be compared across restarts")
    if audit is None or audit.anchors is None:
        found.append("the Gateway names no audit.anchors: a truncated or rewritten log is not detected")
    return found
