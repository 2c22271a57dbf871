"""What a bundle says of itself: which files it has, which number it is, and from when until when it counts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from gateway.bundles.contents import Contents
from gateway.errors import ProgramError

FORMAT: Final = "gateway-bundle/1"
MOST_NUMBER: Final = 2**53 - 1
_FIELDS: Final = frozenset({"format", "number", "created", "notBefore", "expires", "commit", "revision", "files"})


class BundleRefused(ProgramError):
    code = "E_BUNDLE_REFUSED"
    default_message = "the bundle is not used"


@dataclass(frozen=True, slots=True)
class Manifest:
    """`files` are digests by path. `revision` is what the project was when the bundle was made, for people."""

    number: int
    created: datetime
    expires: datetime
    files: Mapping[str, str]
    not_before: datetime | None = None
    commit: str | None = None
    revision: str | None = None

    def encode(self) -> bytes:
        """The same bytes for the same manifest: they are what is signed."""
        data = {
            "format": FORMAT,
            "number": self.number,
            "created": _moment(self.created),
            "notBefore": None if self.not_before is None else _moment(self.not_before),
            "expires": _moment(self.expires),
            "commit": self.commit,
            "revision": self.revision,
            "files": dict(sorted(self.files.items())),
        }
        return json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> "Manifest":
        """Raises `BundleRefused` for everything that is not exactly a manifest."""
        try:
            data = json.loads(content)
            if not isinstance(data, dict) or data.get("format") != FORMAT or set(data) != _FIELDS:
                raise ValueError
            found = cls(
                _number(data["number"]),
                _read(data["created"]),
                _read(data["expires"]),
                _files(data["files"]),
                None if data["notBefore"] is None else _read(data["notBefore"]),
                _text(data["commit"]),
                _text(data["revision"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BundleRefused(
                "the manifest of the bundle is not one", help="make the bundle with: gateway bundle build"
            ) from None
        return found

    def check_time(self, now: datetime) -> None:
        """Raises `BundleRefused` for one that does not count yet, or any more."""
        if self.not_before is not None and now < self.not_before:
            raise BundleRefused(
                f"the bundle does not count before {_moment(self.not_before)}", help="wait, or look at the clock"
            )
        if now >= self.expires:
            raise BundleRefused(f"the bundle counted until {_moment(self.expires)}", help="build and sign a new one")

    def check_files(self, contents: Contents) -> None:
        """Raises `BundleRefused` unless the files are these, all of them and no other."""
        if unlisted := sorted(set(contents) - set(self.files)):
            raise BundleRefused(f"the bundle has a file that its manifest does not list: {unlisted[0]!r}")
        if missing := sorted(set(self.files) - set(contents)):
            raise BundleRefused(f"the bundle lacks a file that its manifest lists: {missing[0]!r}")
        for path, content in contents.items():
            if sha256(content).hexdigest() != self.files[path]:
                raise BundleRefused(f"a file of the bundle is not what its manifest says: {path!r}")


def digests_of(contents: Contents) -> dict[str, str]:
    return {path: sha256(content).hexdigest() for path, content in contents.items()}


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _read(value: Any) -> datetime:
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
