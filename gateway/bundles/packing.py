"""A bundle as one file: a tar with the manifest, its signature if it has one, and the files of the project.

Reading is strict: regular files with plain names, each once, within bounds, and nothing is written anywhere.
"""

import io
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from gateway.bundles.contents import MOST_BYTES, MOST_FILES, Contents
from gateway.bundles.manifest import BundleRefused, Manifest

MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.sig"
LARGEST: Final = MOST_BYTES + (MOST_FILES * 1024) + (4 << 20)
"""Bytes of a bundle, at most."""

_FOLDERS: Final = ("configs", "policies")
_LONGEST_SIGNATURE: Final = 4096


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was read. Whether it may be used is another question."""

    manifest: Manifest
    manifest_bytes: bytes
    signature: bytes | None
    contents: Contents


def packed(contents: Contents, manifest: bytes, *, signature: bytes | None = None) -> bytes:
    """The same bytes for the same content, whoever packs it and when."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, MANIFEST, manifest)
        if signature is not None:
            _add(tar, SIGNATURE, signature)
        for path in sorted(contents):
            _add(tar, path, contents[path])
    return written.getvalue()


def unpacked(content: bytes) -> Bundle:
    """Raises `BundleRefused` for what is no bundle."""
    if len(content) > LARGEST:
        raise BundleRefused("the bundle is too large")
    found: dict[str, bytes] = {}
    size = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for member in tar:
                name = _checked(member, found)
                size += member.size
                if len(found) >= MOST_FILES + 2 or size > MOST_BYTES + (4 << 20):
                    raise BundleRefused("the bundle has too many files, or too large ones")
                file = tar.extractfile(member)
                assert file is not None, "a regular file has a content"  # noqa: S101 - checked above
                found[name] = file.read()
    except (tarfile.TarError, EOFError, OSError, ValueError, UnicodeError):
        raise BundleRefused("the bundle is not a tar", help="make it with: gateway bundle build") from None
    manifest = found.pop(MANIFEST, None)
    if manifest is None:
        raise BundleRefused("the bundle has no manifest", help="make it with: gateway bundle build")
    signature = found.pop(SIGNATURE, None)
    if signature is not None and len(signature) > _LONGEST_SIGNATURE:
        raise BundleRefused("the signature of the bundle is too large to be one")
    return Bundle(Manifest.decode(manifest), manifest, signature, found)


def write_to(folder: Path, contents: Contents) -> None:
    """Below a folder that nobody else can read. Names were checked when the bundle was read."""
    for path, content in contents.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.write_bytes(content)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = len(content), 0o600
    tar.addfile(about, io.BytesIO(content))


def _checked(member: tarfile.TarInfo, found: Contents) -> str:
    name = member.name
    if not member.isreg() or member.issparse():
        raise BundleRefused(f"the bundle has something that is no file: {name!r}")
    if name in found:
        raise BundleRefused(f"the bundle has a file twice: {name!r}")
    if name not in (MANIFEST, SIGNATURE) and not _is_plain(name):
        raise BundleRefused(f"the bundle has a file where none belongs: {name!r}")
    return name


def _is_plain(name: str) -> bool:
    """Below one of the two folders, without a way out of it and without anything hidden."""
    parts = PurePosixPath(name).parts
    is_inside = len(parts) > 1 and parts[0] in _FOLDERS and "/".join(parts) == name
    return is_inside and name.isprintable() and "\\" not in name and not any(part.startswith(".") for part in parts)
