"""The two sides of a plan: the project, and an older one from a folder or a commit.

Files of a commit are read from Git's objects into a temporary folder, without a checkout, shell, hooks or network.
`git archive` is not used: with attributes such as `export-ignore`, a commit could hide a file from the reviewer.

Both sides use the same names of files, wherever the older one was read from.
"""

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final

from gateway.app import LoadedProject, ProjectFolders
from gateway.config import AttestationDocument, CheckedDocument, OverlayDocument
from gateway.policy import Access
from gateway.registries import DeclaredDocument, Diagnostic, Position
from gateway.review import GroupingRow, PlanInput, PolicyRow, SourceValues

_SECONDS: Final = 60
_MOST_BYTES: Final = 256 << 20
_LINK_MODE: Final = "120000"
_SETTINGS: Final = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",  # the commit itself, not its replacement
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class CommitUnreadable(Exception):
    """A project cannot be read from a commit."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


@contextmanager
def checkout_project(project: ProjectFolders, reference: str) -> Iterator[ProjectFolders]:
    """Open the folders of the project as of a commit; they are removed when the context ends."""
    if reference.startswith("-"):
        raise CommitUnreadable(f"{reference!r} is not the name of a commit", "names of commits do not start with -")
    repository = _Repository.around(project.configs)
    commit = repository.commit(reference)
    folders = [repository.inside(folder) for folder in (project.configs, project.policies)]
    with TemporaryDirectory(prefix="gateway-plan-") as root:
        for folder in dict.fromkeys(folders):
            repository.write(commit, folder, into=Path(root), reference=reference)
        configs, policies = (Path(root, folder) for folder in folders)
        yield ProjectFolders(configs, policies)


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
        except CommitUnreadable as error:
            help = "give a folder to compare with, or run this where the project is in a Git repository"
            raise CommitUnreadable(f"{folder} is not in a Git repository ({error.message})", help) from error
        return cls(Path(os.fsdecode(top.removesuffix(b"\n"))))

    def commit(self, reference: str) -> str:
        try:
            found = _git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
        except CommitUnreadable as error:
            help = "give a branch, a tag, a commit, or a folder; git log shows the commits"
            raise CommitUnreadable(f"there is no folder and no commit {reference!r}", help) from error
        return found.decode("ascii").strip()

    def inside(self, folder: Path) -> PurePosixPath:
        """Return the path of the folder relative to the repository."""
        real = Path(os.path.realpath(folder))
        try:
            return PurePosixPath(real.relative_to(os.path.realpath(self.top)).as_posix())
        except ValueError:
            if not real.is_dir():
                raise CommitUnreadable(
                    f"there is no folder {folder}", "name the folder of the project, or run this there"
                ) from None
            raise CommitUnreadable(f"{folder} is not in the repository of the configuration") from None

    def write(self, commit: str, folder: PurePosixPath, *, into: Path, reference: str) -> None:
        """Write every file below a folder of the commit."""
        blobs = list(self._blobs(commit, folder))
        if not blobs:
            help = "compare with a commit that has the project, or give a folder"
            raise CommitUnreadable(f"{folder} is not in {reference}", help)
        if sum(blob.size for blob in blobs) > _MOST_BYTES:
            raise CommitUnreadable(f"{folder} in {reference} is larger than {_MOST_BYTES >> 20} MiB")
        contents = _read_objects(self.top, [blob.id for blob in blobs])
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
                raise CommitUnreadable(f"the commit has a file with the illegal path {path}")
            if kind != "blob":
                raise CommitUnreadable(f"{path} is a submodule", "give a folder to compare with")
            yield _Blob(path, id, mode == _LINK_MODE, int(size))


def _write(path: Path, content: bytes, *, is_link: bool, inside: Path) -> None:
    real = Path(os.path.realpath(path.parent))
    if not real.is_relative_to(os.path.realpath(inside)):
        raise CommitUnreadable(f"the commit has a file {path.name} behind a link out of its folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not is_link:
        path.write_bytes(content)
        return
    target = os.path.normpath(os.path.join(path.parent, os.fsdecode(content)))
    if not Path(target).is_relative_to(inside):
        raise CommitUnreadable(f"the commit has a link {path.name} that leaves its folder")
    os.symlink(os.fsdecode(content), path)


def _read_objects(top: Path, ids: Sequence[str]) -> Iterator[bytes]:
    """Yield the bytes of objects in the order of their ids."""
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
        run = subprocess.run(  # noqa: S603 - a list, no shell; input of users follows --end-of-options
            ["git", "-C", str(folder), *args],  # noqa: S607 - the Git of the user's PATH
            input=stdin,
            capture_output=True,
            env={**inherited, **_SETTINGS},
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise CommitUnreadable(
            "the program git is not installed", "install Git, or give a folder to compare with"
        ) from None
    except subprocess.TimeoutExpired:
        raise CommitUnreadable("git did not answer in a minute", "give a folder to compare with") from None
    if run.returncode:
        lines = run.stderr.decode(errors="replace").strip().splitlines()
        raise CommitUnreadable(lines[0].removeprefix("fatal: ") if lines else f"git {args[0]} failed")
    return run.stdout


Naming = Callable[[str], str]
"""A mapping of names of files."""

_REFERENCES: Final = {"references": True}


def make_plan_input(found: LoadedProject, access: Access, *, naming: Naming, environment: str | None) -> PlanInput:
    """Return one side of a plan. `access` is that of the project, which has no errors."""
    place = partial(_map_position, naming)
    documents = {
        kind: {name: replace(each, position=place(each.position)) for name, each in registry.items()}
        for kind, registry in access.snapshot.documents.items()
    }
    overlays = (_unlinked(each, place) for each in found.loaded.documents if _is_other_overlay(each, environment))
    attestations = (
        _without_access(_unlinked(each, place))
        for each in found.loaded.documents
        if isinstance(each.spec, AttestationDocument)
    )
    return PlanInput(
        access,
        {
            **documents,
            "Overlay": {each.name: each for each in overlays},
            "Attestation": {each.name: each for each in attestations},
        },
        rows=tuple(_rows(found, place)),
        cases=tuple(replace(case, position=place(case.position)) for case in access.snapshot.cases),
        texts={_identity(each): _source_values(each) for each in found.loaded.documents},
        definitions=found.imports,
    )


def path_mapper(project: ProjectFolders, shown_as: ProjectFolders) -> Naming:
    """Return a mapping from the files of one project to the same files of another one."""
    folders = ((project.configs, shown_as.configs), (project.policies, shown_as.policies))
    prefixes = [(f"{one.as_posix()}/", f"{other.as_posix()}/") for one, other in folders]

    def map_path(file: str) -> str:
        fitting = [(old, new) for old, new in prefixes if file.startswith(old)]
        old, new = max(fitting, key=lambda each: len(each[0]), default=("", ""))
        return new + file.removeprefix(old)

    return map_path


def map_problem_path(diagnostic: Diagnostic, naming: Naming) -> Diagnostic:
    related = tuple((note, _map_position(naming, position)) for note, position in diagnostic.related)
    return replace(diagnostic, position=_map_position(naming, diagnostic.position), related=related)


def _map_position(naming: Naming, position: Position) -> Position:
    return replace(position, file=naming(position.file))


def _identity(checked: CheckedDocument) -> tuple[str, str]:
    data = checked.source.data
    return data["kind"], data["metadata"]["name"]


def _source_values(checked: CheckedDocument) -> SourceValues:
    return SourceValues(checked.source.data, checked.source.written, partial(_dump, checked, exclude_defaults=False))


def _dump(checked: CheckedDocument, *, exclude_defaults: bool) -> dict[str, Any]:
    """Return plain data. Warnings are off, because pydantic warns about optional unions that were left out."""
    return checked.spec.model_dump(
        mode="json", by_alias=True, exclude_defaults=exclude_defaults, context=_REFERENCES, warnings=False
    )


def _is_other_overlay(checked: CheckedDocument, environment: str | None) -> bool:
    return isinstance(checked.spec, OverlayDocument) and checked.spec.spec.environment != environment


def _without_access(document: DeclaredDocument) -> DeclaredDocument:
    """Return an attestation without its list of access, which its digest stands for."""
    spec = {name: value for name, value in document.data["spec"].items() if name != "access"}
    return replace(document, data={**document.data, "spec": spec})


def _unlinked(checked: CheckedDocument, place: Callable[[Position], Position]) -> DeclaredDocument:
    """Return a document that is not in the snapshot."""
    kind, name = _identity(checked)
    position = place(checked.source.position(("metadata", "name")))
    return DeclaredDocument(kind, name, None, position, _dump(checked, exclude_defaults=True))


def _rows(found: LoadedProject, place: Callable[[Position], Position]) -> Iterator[PolicyRow | GroupingRow]:
    for row in found.policies.permissions:
        subject, catalogue, object, actions, tier, effect = row.texts
        actions_of_row, position = frozenset(actions.split("|")), place(row.position)
        yield PolicyRow(subject, catalogue, object, actions_of_row, tier, effect, position, row.end)
    for link in found.policies.members:
        yield GroupingRow("g", link.member.text, link.group.text, place(link.member.position), link.end)
    for link in found.policies.objects:
        yield GroupingRow("g2", link.member.text, link.group.text, place(link.member.position))
