"""The paths that a program may use, resolved once, so that links it creates later grant nothing.

Links in a declared path are followed once, when the backend is built, and never where the program itself could have
created them. The launcher then opens the real paths without following any link, so it refuses to start a program that
has replaced a folder by a link.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

EVERYTHING: Final = "/"
SYSTEM_FOLDERS: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"),
    *("/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted"),
)
SYSTEM_FILES: Final = (
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
)
SYSTEM_READABLE: Final = (*SYSTEM_FOLDERS, *SYSTEM_FILES)
"""Paths that every program may read and execute: programs, libraries and certificates of the system."""
NETWORK_READABLE: Final = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services"),
    "/etc/protocols",
)
"""Paths that a program with network access may also read, to resolve host names."""

_MAX_INTERPRETERS: Final = 4
"""Maximum depth of scripts run by scripts; the kernel has the same limit."""
_FIRST_LINE: Final = 256
"""Number of bytes of a script that the kernel inspects."""
_END_OF_NAME: Final = re.compile(rb"[ \t\0]")
_MAX_LINKS: Final = 40


class UntrustedLink(Exception):
    """A path contains a link that the program itself can create or change."""

    def __init__(self, link: str) -> None:
        super().__init__(link)
        self.link = link


@dataclass(frozen=True, slots=True)
class Grants:
    """Real paths that a program may use. `None` means everything; `folder` is the working folder.

    `refusals` lists declared paths that are not granted, each with advice. The program does not start if there are any.
    """

    folder: str | None
    readable: tuple[str, ...] | None
    files: tuple[str, ...]
    writable: tuple[str, ...] | None
    has_network: bool
    distrusted: tuple[str, ...]
    refusals: tuple[tuple[str, str], ...]

    @classmethod
    def resolve(
        cls, program: str, folder: str | None, *, readable: Sequence[str], writable: Sequence[str], has_network: bool
    ) -> "Grants":
        """Resolve the declared paths. All links are followed for a program that may write everywhere."""
        distrusted = () if EVERYTHING in writable else tuple(dict.fromkeys(map(os.path.realpath, writable)))
        refusals: list[tuple[str, str]] = []

        def real(paths: Sequence[str], field: str) -> Iterator[str]:
            for path in paths:
                try:
                    yield real_path(path, distrusted)
                except UntrustedLink as error:
                    message = f"{path} passes through the link {error.link}, which the program itself can change"
                    refusals.append((message, f"remove the link, or correct '{field}'"))

        real_folder = next(real((folder,) if folder is not None else (), "workdir"), None)
        own = (real_folder,) if real_folder not in (None, EVERYTHING) else ()
        real_readable, real_writable = (*real(readable, "readable"), *own), tuple(real(writable, "writable"))
        single = tuple(path for path in real_readable if os.path.isfile(path))
        return cls(
            folder=real_folder,
            readable=None if EVERYTHING in readable else tuple(path for path in real_readable if path not in single),
            files=(*single, *program_files(program, distrusted)),
            writable=None if EVERYTHING in writable else real_writable,
            has_network=has_network,
            distrusted=distrusted,
            refusals=tuple(refusals),
        )

    def launcher_settings(self) -> dict[str, object]:
        """Return the launcher's settings. Files are listed apart, so they are never opened as folders."""
        everything = self.readable is None
        system_files = (*SYSTEM_FILES, *(NETWORK_READABLE if self.has_network else ()))
        folders = [] if everything else [*(self.readable or ()), *_find_real(SYSTEM_FOLDERS, self.distrusted, True)]
        files = [] if everything else [*self.files, *_find_real(system_files, self.distrusted, False)]
        return {
            "folder": self.folder,
            "readable": None if everything else list(dict.fromkeys(folders)),
            "files": list(dict.fromkeys(files)),
            "writable": None if self.writable is None else list(self.writable),
        }


def real_path(path: str, distrusted: Sequence[str]) -> str:
    """Return the path without links. Raise `LinkDistrusted` for a link in one of the distrusted folders."""
    rest = path.split("/")[::-1]
    reached, links = "/", 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            reached = os.path.dirname(reached)
            continue
        step = os.path.join(reached, name)
        try:
            target = os.readlink(step)
        except (OSError, ValueError):  # not a link, or it does not exist
            reached = step
            continue
        links += 1
        if links > _MAX_LINKS or _is_within(reached, distrusted):
            raise UntrustedLink(step)
        reached = "/" if target.startswith("/") else reached
        rest += target.split("/")[::-1]
    return reached


def program_files(program: str, distrusted: Sequence[str]) -> list[str]:
    """Return the real paths of the program and of the interpreters that scripts name; regular files only.

    A script that the program can change grants no interpreter, and a link that it can change grants nothing.
    """
    found: list[str] = []
    with suppress(UntrustedLink, OSError, ValueError):
        while len(found) <= _MAX_INTERPRETERS and program.startswith("/"):
            real = real_path(program, distrusted)
            if not stat.S_ISREG(os.stat(real, follow_symlinks=False).st_mode):
                break
            found.append(real)
            if _is_within(real, distrusted):
                break
            with open(real, "rb") as file:
                program = os.fsdecode(_find_interpreter(file.read(_FIRST_LINE)))
    return found


def _find_interpreter(beginning: bytes) -> bytes:
    """Return the interpreter that the kernel would run a script with; empty if the first line names none."""
    line, *others = beginning.split(b"\n", 1)
    if not line.startswith(b"#!"):
        return b""
    name, *arguments = _END_OF_NAME.split(line[2:].lstrip(b" \t"), maxsplit=1)
    is_cut = not others and not arguments and len(beginning) == _FIRST_LINE
    return b"" if is_cut else name


def _find_real(paths: Sequence[str], distrusted: Sequence[str], is_folder: bool) -> Iterator[str]:
    for path in paths:
        with suppress(UntrustedLink, OSError):
            real = real_path(path, distrusted)
            if stat.S_ISDIR(os.stat(real, follow_symlinks=False).st_mode) == is_folder:
                yield real


def _is_within(path: str, folders: Sequence[str]) -> bool:
    return any(f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)
