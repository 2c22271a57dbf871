"""Sources of a project: a folder, a bundle from a file or a URL, and the last good revision that was served.

A source is read once into a `ProjectCopy`, which a digest identifies. Folders are read in place.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fcntl import LOCK_EX, flock
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from gateway.app.bundle import (
    LARGEST,
    Bundle,
    BundleManifest,
    InvalidBundle,
    extract_files,
    hash_files,
    load_bundle,
    pack_bundle,
    signer_key_id,
    verify_bundle,
    verify_number,
    verify_signature,
)
from gateway.app.project import ProjectFolders
from gateway.app.project_files import (
    ChangeToken,
    ProjectFiles,
    change_token,
    hash_folders,
    hash_project_files,
    read_project_files,
)
from gateway.app.settings import Settings
from gateway.audit import VerifyKey
from gateway.config import SqliteStorageSpec, StorageDocument, load_documents
from gateway.errors import ProgramError
from gateway.http_client import HttpPolicy, is_loopback, send_blocking


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class ProjectCopy:
    """A project as of one moment. `project` can be read until `release` is called."""

    project: ProjectFolders
    contents: Callable[[], ProjectFiles]
    """Returns the files. Raises `GatewayError` if they cannot be read."""
    digest: str
    about: Mapping[str, Any]
    """The source, for the status."""
    release: Callable[[], None] = _do_nothing
    """Called when the folders are no longer read."""
    use: Callable[[], None] = _do_nothing
    """Called just before the project is served. Blocks; raises `GatewayError` if it must not be served."""
    content: bytes | None = None
    """The bytes of the bundle, if it was one."""
    warning: str | None = None
    """Shown for as long as the project is served."""
    until: datetime | None = None
    """When the bundle expires, if it does."""


class ProjectSource(Protocol):
    def load(self) -> ProjectCopy:
        """Read the current project. Blocks; raises `GatewayError`."""
        ...

    def fingerprint(self) -> ChangeToken:
        """Return a token that differs as soon as the project may have changed. Blocks."""
        ...

    def is_unchanged(self, taken: ProjectCopy) -> bool:
        """Whether the source still has the content of the copy: a folder may have changed while it was read."""
        ...


@dataclass(frozen=True, slots=True)
class FolderSource:
    """Folders of documents and of policies, read in place."""

    project: ProjectFolders

    def load(self) -> ProjectCopy:
        folders = self._folders
        return ProjectCopy(
            self.project,
            lambda: read_project_files(folders),
            hash_folders(folders),
            {"folder": str(self.project.configs)},
        )

    def fingerprint(self) -> ChangeToken:
        return change_token(self._folders)

    def is_unchanged(self, taken: ProjectCopy) -> bool:
        return hash_folders(self._folders) == taken.digest

    @property
    def _folders(self) -> dict[str, Path]:
        return {"configs": self.project.configs, "policies": self.project.policies}


LAST_GOOD: Final = "last-good.tar"
NUMBERS: Final = "bundle-number.json"
_POLICY: Final = HttpPolicy(idle=30.0, max_body=LARGEST)
_FOR_EVER: Final = timedelta(days=365 * 100)


@dataclass(frozen=True, slots=True)
class BundleSequence:
    """The stored number of the latest bundle, which prevents a replay of an earlier bundle."""

    folder: Path

    def check(self, bundle: Bundle) -> None:
        latest, digest = self._read_latest()
        verify_number(bundle.manifest, _digest(bundle), latest=latest, latest_digest=digest)

    def use(self, bundle: Bundle) -> None:
        """Store the number. Raises `ProgramError` if that fails: an earlier bundle could then be replayed."""
        content = json.dumps({"number": bundle.manifest.number, "digest": _digest(bundle)}).encode()
        try:
            with _lock_folder(self.folder):  # another process must not write a higher number between the two steps
                self.check(bundle)
                write_atomic(self.folder / NUMBERS, content)
        except OSError as error:
            raise ProgramError(
                f"the number of the bundle cannot be stored in {self.folder} ({type(error).__name__})",
                help="set GATEWAY_STATE to a folder that the gateway may write to",
            ) from None

    def _read_latest(self) -> tuple[int, str]:
        path = self.folder / NUMBERS
        try:
            data = json.loads(path.read_bytes())
            return int(data["number"]), str(data["digest"])
        except FileNotFoundError:
            return 0, ""
        except (OSError, ValueError, TypeError, KeyError):
            raise ProgramError(
                f"{path} cannot be read", help="the last number is unknown: look at the file, then remove it"
            ) from None


@dataclass(frozen=True, slots=True)
class BundleSource:
    """A bundle in a file or at a URL. With keys, it must be signed and not older than the last one."""

    where: str
    keys: Sequence[VerifyKey]
    numbers: BundleSequence

    def load(self) -> ProjectCopy:
        content = self._content()
        bundle = load_bundle(content)
        verify_bundle(bundle, self.keys, now=datetime.now(UTC))
        if self.keys:
            self.numbers.check(bundle)
        about = {
            "bundle": self.where,
            "number": bundle.manifest.number,
            "commit": bundle.manifest.commit,
            "expires": bundle.manifest.expires.isoformat(),
            "signedBy": signer_key_id(bundle) if self.keys else None,
        }
        use = (lambda: self.numbers.use(bundle)) if self.keys else _do_nothing
        warning = None if self.keys else "the bundle is not verified: no key is configured"
        until = bundle.manifest.expires
        return unpack_bundle(bundle.contents, about, content=content, use=use, warning=warning, until=until)

    def fingerprint(self) -> ChangeToken:
        if _is_address(self.where):
            return (sha256(self._content()).hexdigest(),)
        try:
            about = os.stat(self.where)
        except OSError:
            return ()
        return (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)

    def is_unchanged(self, taken: ProjectCopy) -> bool:
        """True for every copy from this source: a bundle is read at once."""
        return "lastGood" not in taken.about

    def _content(self) -> bytes:
        return read_bundle(self.where)


@dataclass(frozen=True, slots=True)
class LastGoodBundle:
    """The last good revision that was served, stored as a bundle in `folder`."""

    folder: Path
    keys: Sequence[VerifyKey] = ()
    because: str = ""

    def store(self, taken: ProjectCopy) -> None:
        """Store a copy. Raises `OSError` if it cannot be written, `GatewayError` if the files changed meanwhile."""
        content = taken.content
        if content is None:
            contents = taken.contents()
            if hash_project_files(contents) != taken.digest:
                raise ProgramError("the files have changed meanwhile")
            content = _pack_unsigned(contents)
        write_atomic(self.folder / LAST_GOOD, content)

    def load(self) -> ProjectCopy:
        """Read the stored revision, even if it has expired. With keys, one of them must have signed it."""
        path = self.folder / LAST_GOOD
        if not path.is_file():
            raise ProgramError(f"there is no last good revision in {self.folder}", help="correct the configuration")
        content = read_file(path)
        bundle = load_bundle(content)
        if self.keys:
            verify_signature(bundle, self.keys)
        bundle.manifest.check_files(bundle.contents)
        warning = f"the last good revision is served: {self.because}" if self.because else None
        until = bundle.manifest.expires
        return unpack_bundle(bundle.contents, {"lastGood": str(path)}, content=content, warning=warning, until=until)

    def fingerprint(self) -> ChangeToken:
        return ()

    def is_unchanged(self, taken: ProjectCopy) -> bool:
        return True


def bundle_keys(settings: Settings) -> tuple[VerifyKey, ...]:
    """Return the keys. Raises `ProgramError` if one cannot be used or a required one is missing."""
    if settings.bundle is None and (settings.bundle_keys or settings.require_signature):
        raise ProgramError("a folder cannot be signed", help="serve a bundle with --bundle")
    if settings.require_signature and not settings.bundle_keys:
        raise ProgramError("a signature is required, but no key is named", help="name the public key with --key")
    return tuple(_read_key(Path(each)) for each in settings.bundle_keys)


def choose_source(settings: Settings, keys: Sequence[VerifyKey]) -> ProjectSource:
    if settings.bundle is None:
        return FolderSource(settings.project)
    return BundleSource(settings.bundle, keys, BundleSequence(state_folder(settings)))


def state_folder(settings: Settings, *, database: Path | None = None) -> Path:
    """Return the folder for state outside the database: beside it, or for bundles in the data folder.

    A bundle must not choose where its number is stored. Without `database`, documents are read to find it.
    """
    usual = Path(os.environ.get("GATEWAY_DATA_DIR") or "data")
    if settings.state is not None or settings.bundle is not None:
        return settings.state or usual
    database = database or _find_database(settings)
    return usual if database is None else database.parent


def _find_database(settings: Settings) -> Path | None:
    loaded = load_documents([settings.project.configs], environ=os.environ, environment=settings.environment)
    found = [each.spec.spec for each in loaded.documents if isinstance(each.spec, StorageDocument)]
    paths = {each.path for each in found if isinstance(each, SqliteStorageSpec)}
    return Path(paths.pop()) if len(paths) == 1 else None


def _read_key(path: Path) -> VerifyKey:
    try:
        return VerifyKey.load(path.read_bytes())
    except OSError as error:
        raise ProgramError(f"the key {path} cannot be read ({type(error).__name__})", help="check its path") from None


def unpack_bundle(
    contents: ProjectFiles,
    about: dict[str, Any],
    *,
    content: bytes,
    use: Any = None,
    warning: str | None,
    until: datetime | None = None,
) -> ProjectCopy:
    """Write the files to a temporary folder, which `release` removes."""
    folder = TemporaryDirectory(prefix="gateway-bundle-", ignore_cleanup_errors=True)
    extract_files(Path(folder.name), contents)
    return ProjectCopy(
        ProjectFolders(Path(folder.name, "configs"), Path(folder.name, "policies")),
        lambda: contents,
        hash_project_files(contents),
        about,
        folder.cleanup,
        use or _do_nothing,
        content,
        warning,
        until,
    )


def read_bundle(where: str) -> bytes:
    """Read a bundle from a file or a URL. Raises `InvalidBundle`."""
    return fetch_bundle(where) if _is_address(where) else read_file(Path(where))


def fetch_bundle(url: str) -> bytes:
    """Fetch a bundle. Raises `InvalidBundle`. No redirect is followed, and only loopback is asked over plain HTTP."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise InvalidBundle("a bundle is only fetched over https", help="write https://")
    try:
        status, content = send_blocking(url, _POLICY)
    except (OSError, HTTPException, ValueError) as error:
        raise InvalidBundle(f"the bundle cannot be fetched ({type(error).__name__})") from None
    if not 200 <= status < 300:
        raise InvalidBundle(f"the bundle cannot be fetched: the server responded with {status}")
    return content


def read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        raise InvalidBundle(
            f"the bundle {path} cannot be read ({type(error).__name__})", help="check its path and permissions"
        ) from None


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file atomically and durably, readable by this user only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder. The kernel releases it if the process ends."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flock(handle, LOCK_EX)
        yield
    finally:
        os.close(handle)


def _pack_unsigned(contents: ProjectFiles) -> bytes:
    now = datetime.now(UTC)
    return pack_bundle(contents, BundleManifest(1, now, now + _FOR_EVER, hash_files(contents)).encode())


def _digest(bundle: Bundle) -> str:
    return sha256(bundle.manifest_bytes).hexdigest()


def _is_address(where: str) -> bool:
    return where.startswith(("https://", "http://"))
