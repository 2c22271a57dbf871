"""The manifest of a bundle: its files, its number, and the time in which it is valid."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from gateway.app.bundles.project_files import ProjectFiles
from gateway.errors import ProgramError

FORMAT: Final = "gateway-bundle/1"
MOST_NUMBER: Final = 2**53 - 1
_FIELDS: Final = frozenset({"format", "number", "created", "notBefore", "expires", "commit", "revision", "files"})


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
