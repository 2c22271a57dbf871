"""The paths that a program may use: real ones, because a program can turn what it writes into links.

Links of a declared path are followed once, when the backend is built, and never where the program itself could have
made them. The launcher then opens the real paths without following any link, so a folder that a program has replaced
with a link ends in a refused start.
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
"""What every program may read and execute: programs, libraries and certificates of the system."""
NETWORK_READABLE: Final = (
    *("/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services"),
    "/etc/protocols",
)
"""What a program with a network reads besides, to find other hosts by name."""

_MOST_INTERPRETERS: Final = 4
"""The kernel follows no more scripts that are run by scripts, either."""
_FIRST_LINE: Final = 256
"""Bytes of a script that the kernel looks at."""
_END_OF_NAME: Final = re.compile(rb"[ \t\0]")
_MOST_LINKS: Final = 40


class LinkDistrusted(Exception):
    """A path passes through a link that the program itself can make or change."""

    def __init__(self, link: str) -> None:
        super().__init__(link)
        self.link = link


@dataclass(frozen=True, slots=True)
class Grants:
    """Real paths. `None` stands for everything; `folder` is where the program starts.

    `refusals` says which declared paths are not granted, each with what to do about it. While there are any, the
    program does not start.
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
        """A program that may write everywhere can change any link, and the gateway: for it links are as they are."""
        distrusted = () if EVERYTHING in writable else tuple(dict.fromkeys(map(os.path.realpath, writable)))
        refusals: list[tuple[str, str]] = []

        def real(paths: Sequence[str], field: str) -> Iterator[str]:
            for path in paths:
                try:
                    yield real_path(path, distrusted)
                except LinkDistrusted as error:
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
        """Folders and files are apart: a path that is granted as a file is never opened as a folder."""
        everything = self.readable is None
        system_files = (*SYSTEM_FILES, *(NETWORK_READABLE if self.has_network else ()))
        folders = [] if everything else [*(self.readable or ()), *_present(SYSTEM_FOLDERS, self.distrusted, True)]
        files = [] if everything else [*self.files, *_present(system_files, self.distrusted, False)]
        return {
            "folder": self.folder,
            "readable": None if everything else list(dict.fromkeys(folders)),
            "files": list(dict.fromkeys(files)),
            "writable": None if self.writable is None else list(self.writable),
        }


def real_path(path: str, distrusted: Sequence[str]) -> str:
    """The path without links. Raises `LinkDistrusted` for a link that lies in one of the distrusted folders."""
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
        except (OSError, ValueError):  # no link, or nothing at all
            reached = step
            continue
        links += 1
        if links > _MOST_LINKS or _is_within(reached, distrusted):
            raise LinkDistrusted(step)
        reached = "/" if target.startswith("/") else reached
        rest += target.split("/")[::-1]
    return reached


def program_files(program: str, distrusted: Sequence[str]) -> list[str]:
    """The real file that runs, and those of the interpreters that scripts name; regular files alone.

    A script that the program can change grants no interpreter, and a link that it can change grants nothing.
    """
    found: list[str] = []
    with suppress(LinkDistrusted, OSError, ValueError):
        while len(found) <= _MOST_INTERPRETERS and program.startswith("/"):
            real = real_path(program, distrusted)
            if not stat.S_ISREG(os.stat(real, follow_symlinks=False).st_mode):
                break
            found.append(real)
            if _is_within(real, distrusted):
                break
            with open(real, "rb") as file:
                program = os.fsdecode(_interpreter(file.read(_FIRST_LINE)))
    return found


def _interpreter(beginning: bytes) -> bytes:
    """What the kernel would run a script with; empty if that is not told by its first line."""
    line, *others = beginning.split(b"\n", 1)
    if not line.startswith(b"#!"):
        return b""
    name, *arguments = _END_OF_NAME.split(line[2:].lstrip(b" \t"), maxsplit=1)
    is_cut = not others and not arguments and len(beginning) == _FIRST_LINE
    return b"" if is_cut else name


def _present(paths: Sequence[str], distrusted: Sequence[str], is_folder: bool) -> Iterator[str]:
    for path in paths:
        with suppress(LinkDistrusted, OSError):
            real = real_path(path, distrusted)
            if stat.S_ISDIR(os.stat(real, follow_symlinks=False).st_mode) == is_folder:
                yield real


def _is_within(path: str, folders: Sequence[str]) -> bool:
    return any(f"{path.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)
