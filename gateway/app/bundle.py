"""A bundle as one file: a tar with the manifest, an optional signature, and the files of the project.

The manifest has the files, the number of the bundle, and the time in which it is valid. Reading is strict: regular
files with plain names, each once, within limits; nothing is written. The Ed25519 signature covers the manifest, which
lists the digest of every file. `BundleExpiryMonitor` logs when the served bundle expires.
"""

import asyncio
import base64
import binascii
import io
import json
import logging
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Final

from gateway.app.project_files import MAX_BYTES, MAX_FILES, ProjectFiles
from gateway.audit import SigningKey, VerifyKey
from gateway.errors import ProgramError
from gateway.policy import Validity, ValidityState

FORMAT: Final = "gateway-bundle/1"
MOST_NUMBER: Final = 2**53 - 1
_FIELDS: Final = frozenset({"format", "number", "created", "notBefore", "expires", "commit", "revision", "files"})
_CHECK_EVERY: Final = 1.0
"""Seconds between two checks. The clock may be set and the bundle replaced, so one long sleep would not do."""

_log: Final = logging.getLogger(__name__)


class InvalidBundle(ProgramError):
    code = "E_BUNDLE_REFUSED"
    default_message = "the bundle is invalid"


@dataclass(frozen=True, slots=True)
class BundleManifest:
    """A manifest. `files` has digests by path; `revision` is that of the project at build time, for information."""

    number: int
    created: datetime
    expires: datetime
    files: Mapping[str, str]
    not_before: datetime | None = None
    commit: str | None = None
    revision: str | None = None

    def encode(self) -> bytes:
        """Return the bytes that are signed; equal manifests give equal bytes."""
        data = {
            "format": FORMAT,
            "number": self.number,
            "created": _format(self.created),
            "notBefore": None if self.not_before is None else _format(self.not_before),
            "expires": _format(self.expires),
            "commit": self.commit,
            "revision": self.revision,
            "files": dict(sorted(self.files.items())),
        }
        return json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> "BundleManifest":
        """Parse a manifest. Raises `InvalidBundle` for anything else."""
        try:
            data = json.loads(content)
            if not isinstance(data, dict) or data.get("format") != FORMAT or set(data) != _FIELDS:
                raise ValueError
            found = cls(
                _number(data["number"]),
                _parse_moment(data["created"]),
                _parse_moment(data["expires"]),
                _files(data["files"]),
                None if data["notBefore"] is None else _parse_moment(data["notBefore"]),
                _text(data["commit"]),
                _text(data["revision"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InvalidBundle(
                "the manifest of the bundle is invalid", help="create the bundle with: gateway bundle build"
            ) from None
        return found

    def check_time(self, now: datetime) -> None:
        """Raise `InvalidBundle` if the bundle is not valid yet or has expired."""
        if self.not_before is not None and now < self.not_before:
            raise InvalidBundle(
                f"the bundle is not valid until {_format(self.not_before)}", help="wait, or check the clock"
            )
        if now >= self.expires:
            raise InvalidBundle(f"the bundle expired at {_format(self.expires)}", help="build and sign a new one")

    def check_files(self, contents: ProjectFiles) -> None:
        """Raise `InvalidBundle` unless the files are exactly those of the manifest."""
        if unlisted := sorted(set(contents) - set(self.files)):
            raise InvalidBundle(f"the bundle has a file that its manifest does not list: {unlisted[0]!r}")
        if missing := sorted(set(self.files) - set(contents)):
            raise InvalidBundle(f"the bundle lacks a file that its manifest lists: {missing[0]!r}")
        for path, content in contents.items():
            if sha256(content).hexdigest() != self.files[path]:
                raise InvalidBundle(f"a file of the bundle does not have the digest of the manifest: {path!r}")


def hash_files(contents: ProjectFiles) -> dict[str, str]:
    return {path: sha256(content).hexdigest() for path, content in contents.items()}


def _format(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _parse_moment(value: Any) -> datetime:
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError
    return found


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_NUMBER:
        raise ValueError
    return value


def _text(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) > 200 or not value.isprintable()):
        raise ValueError
    return value


def _files(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not value:
        raise ValueError
    for path, digest in value.items():
        if not isinstance(digest, str) or len(digest) != 64 or not isinstance(path, str):
            raise ValueError
    return value


MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.sig"
LARGEST: Final = MAX_BYTES + (MAX_FILES * 1024) + (4 << 20)
"""Bytes of the largest bundle."""

_FOLDERS: Final = ("configs", "policies")
_LONGEST_SIGNATURE: Final = 4096


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was read but not verified."""

    manifest: BundleManifest
    manifest_bytes: bytes
    signature: bytes | None
    contents: ProjectFiles


def pack_bundle(contents: ProjectFiles, manifest: bytes, *, signature: bytes | None = None) -> bytes:
    """Return the bytes of a bundle; equal content gives equal bytes."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, MANIFEST, manifest)
        if signature is not None:
            _add(tar, SIGNATURE, signature)
        for path in sorted(contents):
            _add(tar, path, contents[path])
    return written.getvalue()


def load_bundle(content: bytes) -> Bundle:
    """Read a bundle. Raises `InvalidBundle`."""
    if len(content) > LARGEST:
        raise InvalidBundle("the bundle is too large")
    found: dict[str, bytes] = {}
    size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                name = _check_member(member, found)
                size += member.size
                if len(found) >= MAX_FILES + 2 or size > MAX_BYTES + (4 << 20):
                    raise InvalidBundle("the bundle has too many files, or too large ones")
                file = tar.extractfile(member)
                assert file is not None, "a regular file has a content"  # noqa: S101 - checked above
                found[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, ValueError, UnicodeError):
        raise InvalidBundle("the bundle is not a tar", help="create it with: gateway bundle build") from None
    manifest = found.pop(MANIFEST, None)
    if manifest is None:
        raise InvalidBundle("the bundle has no manifest", help="create it with: gateway bundle build")
    signature = found.pop(SIGNATURE, None)
    if signature is not None and len(signature) > _LONGEST_SIGNATURE:
        raise InvalidBundle("the signature of the bundle is too large")
    return Bundle(BundleManifest.decode(manifest), manifest, signature, found)


def extract_files(folder: Path, contents: ProjectFiles) -> None:
    """Write the files below a private folder. `load_bundle` has checked their names."""
    for path, content in contents.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_bytes(content)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(content), 0o600
    tar.addfile(about, io.BytesIO(content))


def _check_member(member: tarfile.TarInfo, found: ProjectFiles) -> str:
    name = member.name
    if not member.isreg() or member.issparse():
        raise InvalidBundle(f"the bundle has an entry that is not a file: {name!r}")
    if name in found:
        raise InvalidBundle(f"the bundle has a file twice: {name!r}")
    if name not in (MANIFEST, SIGNATURE) and not _is_plain(name):
        raise InvalidBundle(f"the bundle has a file in a place that is not allowed: {name!r}")
    return name


def _is_plain(name: str) -> bool:
    """Whether the path is below one of the two folders, without `..` and without hidden parts."""
    parts = PurePosixPath(name).parts
    is_inside = len(parts) > 1 and parts[0] in _FOLDERS and "/".join(parts) == name
    return is_inside and name.isprintable() and "\\" not in name and not any(part.startswith(".") for part in parts)


_PURPOSE: Final = "bundle"


def sign_manifest(manifest: bytes, key: SigningKey) -> bytes:
    signature = base64.b64encode(key.sign(manifest, purpose=_PURPOSE)).decode()
    return json.dumps({"key": key.id, "signature": signature}, sort_keys=True).encode() + b"\n"


def verify_bundle(bundle: Bundle, keys: Sequence[VerifyKey], *, now: datetime) -> None:
    """Raise `InvalidBundle` unless the bundle is complete, valid now and, if keys are given, signed with one."""
    if keys:
        verify_signature(bundle, keys)
    bundle.manifest.check_files(bundle.contents)
    bundle.manifest.check_time(now)


def verify_number(manifest: BundleManifest, digest: str, *, latest: int, latest_digest: str) -> None:
    """Raise `InvalidBundle` for a lower number than the latest, or for other content with the same number."""
    if manifest.number < latest:
        raise InvalidBundle(
            f"the bundle has number {manifest.number}, but {latest} was already in use",
            help="to go back, build the earlier files with a new number",
        )
    if manifest.number == latest and latest_digest != digest:
        raise InvalidBundle(f"another bundle with number {latest} was already in use", help="use a new number")


def signer_key_id(bundle: Bundle) -> str | None:
    """Return the id of the key that the signature names; `verify_signature` checks it."""
    found = _parse_signature(bundle.signature) if bundle.signature is not None else None
    return None if found is None else found[0]


def verify_signature(bundle: Bundle, keys: Sequence[VerifyKey]) -> None:
    if bundle.signature is None:
        raise InvalidBundle("the bundle is not signed", help="sign it with: gateway bundle sign")
    found = _parse_signature(bundle.signature)
    if found is None:
        raise InvalidBundle("the signature of the bundle cannot be read", help="sign it with: gateway bundle sign")
    named, signature = found
    key = next((each for each in keys if each.id == named), None)
    if key is None:
        raise InvalidBundle("the bundle is signed with an unknown key", help="name its public half with --key")
    if not key.has_signed(bundle.manifest_bytes, signature, purpose=_PURPOSE):
        raise InvalidBundle("the signature does not match the manifest", help="the bundle or the signature was changed")


def _parse_signature(content: bytes) -> tuple[str, bytes] | None:
    try:
        data = json.loads(content)
        return str(data["key"]), base64.b64decode(data["signature"], validate=True)
    except (ValueError, TypeError, KeyError, binascii.Error, RecursionError):
        return None


class BundleExpiryMonitor:
    """Logs once that the served bundle expires soon, and once that it has expired."""

    def __init__(self, validity: Validity) -> None:
        self._validity = validity
        self._logged: ValidityState = "current"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def check(self) -> None:
        """Log the state if it changed. A replaced bundle starts again as current."""
        state = self._validity.state
        if state != self._logged and (problem := self._validity.problem) is not None:
            _log.log(logging.WARNING if state == "ending" else logging.ERROR, "%s", problem)
        self._logged = state

    async def _run(self) -> None:
        while True:
            self.check()
            await asyncio.sleep(_CHECK_EVERY)
