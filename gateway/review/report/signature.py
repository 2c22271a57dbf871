"""The signature of a report: one Ed25519 signature over the digests of the page, the data and the OSCAL results.

Verifying needs the files, the signature file beside them and a public key, and no network. Everything is bounded, and
any doubt refuses.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from gateway.audit import SigningKey, VerifyKey
from gateway.errors import ProgramError

SUFFIXES: Final = (".html", ".json", ".oscal.json")
"""What a report consists of: the page, its data, and OSCAL assessment results."""
SIGNATURE_SUFFIX: Final = ".sig"
MOST_SIGNATURE: Final = 64 << 10
MOST_FILE: Final = 256 << 20

_FORMAT: Final = "gateway-review-signature/1"
_FIELDS: Final = frozenset({"format", "revision", "files", "key", "signature"})
_PURPOSE: Final = "review"


class InvalidReport(ProgramError):
    code = "E_REPORT_REFUSED"
    default_message = "the report is not what was signed"


@dataclass(frozen=True, slots=True)
class ReportSignature:
    """A signature file that was read but not verified. `files` has digests by name."""

    revision: str
    files: Mapping[str, str]
    key: str
    signature: bytes

    @property
    def signed_bytes(self) -> bytes:
        return _signed_bytes(self.revision, self.files)


def sign_report(files: Mapping[str, bytes], *, revision: str, key: SigningKey) -> bytes:
    """Return the signature file over the files of a report, by their names."""
    digests = {name: sha256(content).hexdigest() for name, content in sorted(files.items())}
    signature = base64.b64encode(key.sign(_signed_bytes(revision, digests), purpose=_PURPOSE)).decode()
    data = {"format": _FORMAT, "revision": revision, "files": digests, "key": key.id, "signature": signature}
    return json.dumps(data, indent=1, sort_keys=True).encode() + b"\n"


def read_signature(content: bytes) -> ReportSignature:
    """Parse a signature file. Raises `InvalidReport` for anything else."""
    if len(content) > MOST_SIGNATURE:
        raise InvalidReport("the signature file is too large", help=_AGAIN)
    try:
        data = json.loads(content)
        if not isinstance(data, dict) or set(data) != _FIELDS or data["format"] != _FORMAT:
            raise ValueError
        signature = base64.b64decode(data["signature"], validate=True)
        found = ReportSignature(_text(data["revision"]), _files(data["files"]), _text(data["key"]), signature)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        raise InvalidReport("the signature file cannot be read", help=_AGAIN) from None
    return found


def verify_report(found: ReportSignature, files: Mapping[str, bytes], keys: Sequence[VerifyKey]) -> None:
    """Raise `InvalidReport` unless one of the keys signed exactly these files."""
    key = next((each for each in keys if each.id == found.key), None)
    if key is None:
        raise InvalidReport(
            f"the report is signed with the unknown key {found.key!r}", help="name its public half: --key"
        )
    if not key.has_signed(found.signed_bytes, found.signature, purpose=_PURPOSE):
        raise InvalidReport(
            "the signature is not valid", help="the signature file was changed, or made with another key"
        )
    for name, digest in found.files.items():
        content = files.get(name)
        if content is None:
            raise InvalidReport(f"{name!r} is missing", help="keep all files of a report in one folder")
        if sha256(content).hexdigest() != digest:
            raise InvalidReport(f"{name!r} is not the file that was signed", help="it was changed, cut off or swapped")
    _check_revision(found, files)


_AGAIN: Final = "write the report again: gateway report --sign KEY"


def _check_revision(found: ReportSignature, files: Mapping[str, bytes]) -> None:
    data = next(content for name, content in files.items() if _is_data(name))
    try:
        revision = json.loads(data)["revision"]["revision"]
    except (ValueError, TypeError, KeyError, RecursionError):
        revision = None
    if revision != found.revision:
        raise InvalidReport("the data is of another revision than the signature", help=_AGAIN)


def _is_data(name: str) -> bool:
    return name.endswith(".json") and not name.endswith(".oscal.json")


def _signed_bytes(revision: str, files: Mapping[str, str]) -> bytes:
    return json.dumps({"format": _FORMAT, "revision": revision, "files": dict(files)}, sort_keys=True).encode()


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or len(value) > 200:
        raise ValueError
    return value


def _files(value: Any) -> dict[str, str]:
    """Return digests by name: exactly one file of each suffix, all with the same stem, without a folder."""
    if not isinstance(value, dict) or len(value) != len(SUFFIXES):
        raise ValueError
    stem = next((name.removesuffix(".html") for name in value if name.endswith(".html")), "")
    if not stem or "/" in stem or "\\" in stem or set(value) != {f"{stem}{suffix}" for suffix in SUFFIXES}:
        raise ValueError
    for digest in value.values():
        if not isinstance(digest, str) or len(digest) != 64 or not digest.isascii():
            raise ValueError
    return dict(value)
