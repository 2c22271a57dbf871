"""The files that a project is made of, as bytes: which they are, what they are as a whole, and whether they changed.

Hidden files are passed over, and links are followed within a folder only, as mounted ConfigMaps need it. Files of other
kinds, secrets among them, are none of a project's. What is in the files is not known here.
"""

import os
from collections.abc import Iterator, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final

from gateway.errors import ProgramError

SUFFIXES: Final = (".yaml", ".yml", ".csv", ".conf", ".json", ".jwks", ".lock")
MOST_FILES: Final = 10_000
MOST_BYTES: Final = 64 << 20

Contents = Mapping[str, bytes]
"""Files by their path: `configs/…` and `policies/…`."""
Sign = tuple[object, ...]
"""Equal as long as nobody wrote to a file, as far as the file system tells."""


class ContentsUnusable(ProgramError):
    code = "E_CONTENTS_UNUSABLE"
    default_message = "the files of the project cannot be used"


def contents_of(folders: Mapping[str, Path]) -> dict[str, bytes]:
    """Everything in the folders, each under its name. Raises `ContentsUnusable`."""
    found: dict[str, bytes] = {}
    size = 0
    for path, file in _files(folders):
        try:
            found[path] = file.read_bytes()
        except OSError as error:
            raise ContentsUnusable(
                f"{path} cannot be read ({type(error).__name__})", help="check that it is there, and whose"
            ) from None
        size += len(found[path])
        if len(found) > MOST_FILES or size > MOST_BYTES:
            raise ContentsUnusable(
                "the project has more than 10,000 files or 64 MiB", help="keep what is no document elsewhere"
            )
    return found


def digest_of(contents: Contents) -> str:
    """Of names and contents, in one order."""
    whole = sha256()
    for path in sorted(contents):
        whole.update(f"{path}\n{sha256(contents[path]).hexdigest()}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()


def digest_in(folders: Mapping[str, Path]) -> str:
    """The same of what is in the folders, however large. What cannot be read counts as nothing: others tell why."""
    whole = sha256()
    for path, file in _files(folders):
        whole.update(f"{path}\n{_digest(file)}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()


def sign_of(folders: Mapping[str, Path]) -> Sign:
    """Costs no reading. A folder that is swapped as a whole, by a link, has another sign, too."""
    found: list[object] = []
    for path, file in _files(folders):
        try:
            about = file.stat()
        except OSError:
            found.append((path, None))
        else:
            found.append((path, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns))
    return tuple(found)


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return file_digest(opened, "sha256").hexdigest()
    except OSError:
        return "unreadable"


def _files(folders: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    for name, folder in sorted(folders.items()):
        yield from sorted((f"{name}/{path}", file) for path, file in _below(folder))


def _below(root: Path) -> Iterator[tuple[str, Path]]:
    inside = os.path.realpath(root)
    entered: set[str] = set()
    waiting = [(root, "")]
    while waiting:
        folder, prefix = waiting.pop()
        real = os.path.realpath(folder)
        if real in entered or not Path(real).is_relative_to(inside):
            continue
        entered.add(real)
        for entry in _entries(folder):
            path = f"{prefix}{entry.name}"
            if entry.is_dir():
                waiting.append((Path(entry.path), f"{path}/"))
            elif entry.name.endswith(SUFFIXES) and _is_within(entry, inside):
                yield path, Path(entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [each for each in entries if not each.name.startswith(".")]
    except OSError:  # told by whoever reads documents there
        return []


def _is_within(entry: "os.DirEntry[str]", root: str) -> bool:
    """Whether it is a regular file, and in the folder wherever a link leads."""
    return entry.is_file() and (not entry.is_symlink() or Path(os.path.realpath(entry.path)).is_relative_to(root))
