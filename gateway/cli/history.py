"""A project as of a commit: its files are read from Git's objects into a temporary folder, nothing is checked out.

`git archive` is not used: attributes inside the commit (`export-ignore`) could keep files from it, and with them the
row or rule whose disappearance a reviewer should see. No shell, no hooks, no network.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final

from gateway.assembly import Project

_SECONDS: Final = 60
_MOST_BYTES: Final = 256 << 20
_LINK_MODE: Final = "120000"
_SETTINGS: Final = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",  # the commit itself, not what somebody put in its place
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class NotInHistory(Exception):
    """Why a project cannot be read from a commit: a message and what to do."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


@contextmanager
def project_in_commit(project: Project, reference: str) -> Iterator[Project]:
    """The same folders as they were in a commit, for as long as the context lasts."""
    if reference.startswith("-"):
        raise NotInHistory(f"{reference!r} is not the name of a commit", "names of commits do not start with -")
    repository = _Repository.around(project.configs)
    commit = repository.commit(reference)
    folders = [repository.inside(folder) for folder in (project.configs, project.policies)]
    with TemporaryDirectory(prefix="gateway-plan-") as root:
        for folder in dict.fromkeys(folders):
            repository.write(commit, folder, into=Path(root), reference=reference)
        configs, policies = (Path(root, folder) for folder in folders)
        yield Project(configs, policies)


@dataclass(frozen=True, slots=True)
class _Blob:
    path: PurePosixPath
    id: str
    is_link: bool
    size: int


@dataclass(frozen=True, slots=True)
class _Repository:
    top: Path

    @classmethod
    def around(cls, folder: Path) -> "_Repository":
        try:
            top = _git(folder, "rev-parse", "--show-toplevel")
        except NotInHistory as error:
            help = "give a folder to compare with, or run this where the project is in a Git repository"
            raise NotInHistory(f"{folder} is not in a Git repository ({error.message})", help) from error
        return cls(Path(os.fsdecode(top.removesuffix(b"\n"))))

    def commit(self, reference: str) -> str:
        try:
            found = _git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
        except NotInHistory as error:
            help = "give a branch, a tag, a commit, or a folder; git log shows what there is"
            raise NotInHistory(f"there is no folder and no commit {reference!r}", help) from error
        return found.decode("ascii").strip()

    def inside(self, folder: Path) -> PurePosixPath:
        """The folder's path from the top of the repository."""
        real = Path(os.path.realpath(folder))
        try:
            return PurePosixPath(real.relative_to(os.path.realpath(self.top)).as_posix())
        except ValueError:
            if not real.is_dir():
                raise NotInHistory(
                    f"there is no folder {folder}", "name the project's, or run this where it is"
                ) from None
            raise NotInHistory(f"{folder} is not in the repository of the configuration") from None

    def write(self, commit: str, folder: PurePosixPath, *, into: Path, reference: str) -> None:
        """Write every file below a folder of the commit."""
        blobs = list(self._blobs(commit, folder))
        if not blobs:
            help = "compare with a commit that has the project, or give a folder"
            raise NotInHistory(f"{folder} is not in {reference}", help)
        if sum(blob.size for blob in blobs) > _MOST_BYTES:
            raise NotInHistory(f"{folder} in {reference} is larger than {_MOST_BYTES >> 20} MiB")
        contents = _contents(self.top, [blob.id for blob in blobs])
        for blob, content in zip(blobs, contents, strict=True):
            _write(into / blob.path, content, is_link=blob.is_link, inside=into / folder)

    def _blobs(self, commit: str, folder: PurePosixPath) -> Iterator[_Blob]:
        scope = [] if folder == PurePosixPath() else ["--", folder.as_posix()]
        listed = _git(self.top, "--literal-pathspecs", "ls-tree", "-r", "-z", "-l", "--full-tree", commit, *scope)
        for entry in filter(None, listed.split(b"\0")):
            described, _, name = entry.partition(b"\t")
            mode, kind, id, size = described.decode("ascii").split()
            path = PurePosixPath(os.fsdecode(name))
            if path.is_absolute() or ".." in path.parts:
                raise NotInHistory(f"the commit has a file with the illegal path {path}")
            if kind != "blob":
                raise NotInHistory(f"{path} is a submodule", "give a folder to compare with")
            yield _Blob(path, id, mode == _LINK_MODE, int(size))


def _write(path: Path, content: bytes, *, is_link: bool, inside: Path) -> None:
    real = Path(os.path.realpath(path.parent))
    if not real.is_relative_to(os.path.realpath(inside)):
        raise NotInHistory(f"the commit has a file {path.name} behind a link out of its folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not is_link:
        path.write_bytes(content)
        return
    target = os.path.normpath(os.path.join(path.parent, os.fsdecode(content)))
    if not Path(target).is_relative_to(inside):
        raise NotInHistory(f"the commit has a link {path.name} that leaves its folder")
    os.symlink(os.fsdecode(content), path)


def _contents(top: Path, ids: Sequence[str]) -> Iterator[bytes]:
    """The bytes of objects in the order asked for."""
    answer = _git(top, "cat-file", "--batch", stdin="".join(f"{id}\n" for id in ids).encode("ascii"))
    start = 0
    for _ in ids:
        end = answer.index(b"\n", start)
        size = int(answer[start:end].split()[-1])
        yield answer[end + 1 : end + 1 + size]
        start = end + 1 + size + 1


def _git(folder: Path, *args: str, stdin: bytes = b"") -> bytes:
    # Variables such as GIT_DIR, set inside hooks, would lead to another repository.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        run = subprocess.run(  # noqa: S603 - a list, no shell; what users give stands behind --end-of-options
            ["git", "-C", str(folder), *args],  # noqa: S607 - Git is where the user's PATH says
            input=stdin,
            capture_output=True,
            env={**inherited, **_SETTINGS},
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise NotInHistory("there is no program git", "install Git, or give a folder to compare with") from None
    except subprocess.TimeoutExpired:
        raise NotInHistory("git did not answer in a minute", "give a folder to compare with") from None
    if run.returncode:
        lines = run.stderr.decode(errors="replace").strip().splitlines()
        raise NotInHistory(lines[0].removeprefix("fatal: ") if lines else f"git {args[0]} failed")
    return run.stdout
