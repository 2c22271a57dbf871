"""The files of a project as bytes: read them, hash them, and detect changes.

Hidden files are skipped, and links are followed only within a folder, as mounted ConfigMaps need it. Files with other
suffixes, such as secrets, do not belong to a project. The content of files is not interpreted here.
"""

import os
from collections.abc import Iterator, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Final

from gateway.errors import ProgramError

SUFFIXES: Final = (".yaml", ".yml", ".csv", ".conf", ".json", ".jwks", ".lock")
MAX_FILES: Final = 10_000
MAX_BYTES: Final = 64 << 20

ProjectFiles = Mapping[str, bytes]
"""Contents by path: `configs/…` and `policies/…`."""
ChangeToken = tuple[object, ...]
"""Equal as long as no file changed, according to the file system."""


class InvalidProjectFiles(ProgramError):
    code = "E_CONTENTS_UNUSABLE"
    default_message = "the files of the project cannot be used"


def read_project_files(folders: Mapping[str, Path]) -> dict[str, bytes]:
    """Read all files of the folders. Raises `InvalidProjectFiles`."""
    found: dict[str, bytes] = {}
    size = 0
    for path, file in _list_files(folders):
        try:
            found[path] = file.read_bytes()
        except OSError as error:
            raise InvalidProjectFiles(
                f"{path} cannot be read ({type(error).__name__})", help="check its path and permissions"
            ) from None
        size += len(found[path])
        if len(found) > MAX_FILES or size > MAX_BYTES:
            raise InvalidProjectFiles(
                "the project has more than 10,000 files or 64 MiB", help="move files that are not documents elsewhere"
            )
    return found


def hash_project_files(contents: ProjectFiles) -> str:
    """Return a hash of all names and contents."""
    whole = sha256()
    for path in sorted(contents):
        whole.update(f"{path}\n{sha256(contents[path]).hexdigest()}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()


def hash_folders(folders: Mapping[str, Path]) -> str:
    """Return the same hash for files in folders, without a size limit. Unreadable files are reported elsewhere."""
    whole = sha256()
    for path, file in _list_files(folders):
        whole.update(f"{path}\n{_digest(file)}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()


def change_token(folders: Mapping[str, Path]) -> ChangeToken:
    """Return a change token without reading files. It also changes if a link swaps a whole folder."""
    found: list[object] = []
    for path, file in _list_files(folders):
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


def _list_files(folders: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    for name, folder in sorted(folders.items()):
        yield from sorted((f"{name}/{path}", file) for path, file in _walk(folder))


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
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
    except OSError:  # the loader of documents reports it
        return []


def _is_within(entry: "os.DirEntry[str]", root: str) -> bool:
    """Whether it is a regular file inside the folder, after following links."""
    return entry.is_file() and (not entry.is_symlink() or Path(os.path.realpath(entry.path)).is_relative_to(root))
