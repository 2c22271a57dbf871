"""Who vouches for a bundle: an Ed25519 signature over its manifest, which lists every file by its digest."""

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from gateway.audit.keys import PublicKey, SigningKey
from gateway.bundles.manifest import BundleRefused, Manifest
from gateway.bundles.packing import Bundle

_PURPOSE: Final = "bundle"


def signature_of(manifest: bytes, key: SigningKey) -> bytes:
    signature = base64.b64encode(key.sign(manifest, purpose=_PURPOSE)).decode()
    return json.dumps({"key": key.id, "signature": signature}, sort_keys=True).encode() + b"\n"


def check(bundle: Bundle, keys: Sequence[PublicKey], *, now: datetime) -> None:
    """Raises `BundleRefused` unless the bundle is whole, counts now and, if keys are given, is signed with one."""
    if keys:
        check_signature(bundle, keys)
    bundle.manifest.check_files(bundle.contents)
    bundle.manifest.check_time(now)


def check_number(manifest: Manifest, digest: str, *, latest: int, latest_digest: str) -> None:
    """Raises `BundleRefused` for one that is older than what was used before, or another one of the same number."""
    if manifest.number < latest:
        raise BundleRefused(
            f"the bundle has number {manifest.number}, and {latest} was in use already",
            help="to go back, build the earlier files with a new number",
        )
    if manifest.number == latest and latest_digest != digest:
        raise BundleRefused(f"another bundle of number {latest} was in use already", help="build it with a new number")


def signer(bundle: Bundle) -> str | None:
    """The id of the key that is said to have signed; only `check` tells whether it did."""
    found = _read(bundle.signature) if bundle.signature is not None else None
    return None if found is None else found[0]


def check_signature(bundle: Bundle, keys: Sequence[PublicKey]) -> None:
    if bundle.signature is None:
        raise BundleRefused("the bundle is not signed", help="sign it with: gateway bundle sign")
    found = _read(bundle.signature)
    if found is None:
        raise BundleRefused("the signature of the bundle cannot be read", help="sign it with: gateway bundle sign")
    named, signature = found
    key = next((each for each in keys if each.id == named), None)
    if key is None:
        raise BundleRefused(
            "the bundle is signed with a key that does not count here", help="name its public half with --key"
        )
    if not key.has_signed(bundle.manifest_bytes, signature, purpose=_PURPOSE):
        raise BundleRefused(
            "the signature is not of this manifest", help="somebody changed the bundle, or the signature"
        )


def _read(content: bytes) -> tuple[str, bytes] | None:
    try:
        data = json.loads(content)
        return str(data["key"]), base64.b64decode(data["signature"], validate=True)
    except (ValueError, TypeError, KeyError, binascii.Error, RecursionError):
        return None
