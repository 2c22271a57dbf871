"""Projects that come as a bundle, from a file or an address, and the last one that was served, kept for a bad day."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fcntl import LOCK_EX, flock
from hashlib import sha256
from http.client import HTTPException
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from gateway.assembly import Project
from gateway.audit.keys import PublicKey
from gateway.bundles.contents import Contents, Sign, digest_of
from gateway.bundles.manifest import BundleRefused, Manifest, digests_of
from gateway.bundles.packing import LARGEST, Bundle, packed, unpacked, write_to
from gateway.bundles.signing import check, check_number, check_signature, signer
from gateway.config.loader import load
from gateway.config.specs.gateway import SqliteStorageSpec, StorageDocument
from gateway.errors import ProgramError
from gateway.runtime.settings import Settings
from gateway.runtime.sourcing import FolderSource, Source, Taken

LAST_GOOD: Final = "last-good.tar"
NUMBERS: Final = "bundle-number.json"
_SECONDS: Final = 30
_FOR_EVER: Final = timedelta(days=365 * 100)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Remembers the highest number that was in use, so that nobody can bring an earlier bundle back."""

    folder: Path

    def check(self, bundle: Bundle) -> None:
        latest, digest = self._latest()
        check_number(bundle.manifest, _digest(bundle), latest=latest, latest_digest=digest)

    def use(self, bundle: Bundle) -> None:
        """Raises `ProgramError` where it cannot be remembered: then nothing would keep an earlier one out."""
        content = json.dumps({"number": bundle.manifest.number, "digest": _digest(bundle)}).encode()
        try:
            with _locked(self.folder):  # another process must not write a higher number between the two steps
                self.check(bundle)
                write_whole(self.folder / NUMBERS, content)
        except OSError as error:
            raise ProgramError(
                f"which bundle is in use cannot be remembered in {self.folder} ({type(error).__name__})",
                help="set GATEWAY_STATE to a folder that the gateway may write to",
            ) from None

    def _latest(self) -> tuple[int, str]:
        path = self.folder / NUMBERS
        try:
            data = json.loads(path.read_bytes())
            return int(data["number"]), str(data["digest"])
        except FileNotFoundError:
            return 0, ""
        except (OSError, ValueError, TypeError, KeyError):
            raise ProgramError(
                f"{path} cannot be read", help="nobody knows which bundle was in use: look at it, then remove it"
            ) from None


@dataclass(frozen=True, slots=True)
class BundleSource:
    """A bundle in a file or at an address. With keys, only one that is signed and not older than the last is taken."""

    where: str
    keys: Sequence[PublicKey]
    numbers: Numbers

    def take(self) -> Taken:
        content = self._content()
        bundle = unpacked(content)
        check(bundle, self.keys, now=datetime.now(UTC))
        if self.keys:
            self.numbers.check(bundle)
        about = {
            "bundle": self.where,
            "number": bundle.manifest.number,
            "commit": bundle.manifest.commit,
            "expires": bundle.manifest.expires.isoformat(),
            "signedBy": signer(bundle) if self.keys else None,
        }
        use = (lambda: self.numbers.use(bundle)) if self.keys else _nothing
        warning = (
            None if self.keys else "the bundle is used whoever made it: no key is named that it has to be signed with"
        )
        until = bundle.manifest.expires
        return taken_from(bundle.contents, about, content=content, use=use, warning=warning, until=until)

    def sign(self) -> Sign:
        if _is_address(self.where):
            return (sha256(self._content()).hexdigest(),)
        try:
            about = os.stat(self.where)
        except OSError:
            return ()
        return (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)

    def is_still(self, taken: Taken) -> bool:
        """What was taken from here is a copy."""
        return "lastGood" not in taken.about

    def _content(self) -> bytes:
        return content_at(self.where)


@dataclass(frozen=True, slots=True)
class LastGood:
    """What was served last, in a folder of ours."""

    folder: Path
    keys: Sequence[PublicKey] = ()
    because: str = ""

    def keep(self, taken: Taken) -> None:
        """Raises `OSError` where it cannot be written, `GatewayError` where it cannot be had any more."""
        content = taken.content
        if content is None:
            contents = taken.contents()
            if digest_of(contents) != taken.digest:
                raise ProgramError("the files are others by now")
            content = _plain(contents)
        write_whole(self.folder / LAST_GOOD, content)

    def take(self) -> Taken:
        """It may be past its end, which is told like that of any other. With keys, only what one of them has signed."""
        path = self.folder / LAST_GOOD
        if not path.is_file():
            raise ProgramError(f"there is no last good revision in {self.folder}", help="correct the configuration")
        content = read(path)
        bundle = unpacked(content)
        if self.keys:
            check_signature(bundle, self.keys)
        bundle.manifest.check_files(bundle.contents)
        warning = f"the last good revision is served: {self.because}" if self.because else None
        until = bundle.manifest.expires
        return taken_from(bundle.contents, {"lastGood": str(path)}, content=content, warning=warning, until=until)

    def sign(self) -> Sign:
        return ()

    def is_still(self, taken: Taken) -> bool:
        return True


def bundle_keys(settings: Settings) -> tuple[PublicKey, ...]:
    """Raises `ProgramError` for a key that cannot be used, and where there has to be one."""
    if settings.bundle is None and (settings.bundle_keys or settings.require_signature):
        raise ProgramError("a folder is not signed", help="serve a bundle, with --bundle")
    if settings.require_signature and not settings.bundle_keys:
        raise ProgramError("a signature is required, and no key is named", help="name the public key with --key")
    return tuple(_key(Path(each)) for each in settings.bundle_keys)


def source_of(settings: Settings, keys: Sequence[PublicKey]) -> Source:
    if settings.bundle is None:
        return FolderSource(settings.project)
    return BundleSource(settings.bundle, keys, Numbers(state_folder(settings)))


def state_folder(settings: Settings, *, database: Path | None = None) -> Path:
    """What is kept besides the store is beside it, but for bundles: none says where its own number is remembered.

    Without a `database`, the documents are asked where it is, for they may be broken elsewhere.
    """
    usual = Path(os.environ.get("GATEWAY_DATA_DIR") or "data")
    if settings.state is not None or settings.bundle is not None:
        return settings.state or usual
    database = database or _declared_database(settings)
    return usual if database is None else database.parent


def _declared_database(settings: Settings) -> Path | None:
    loaded = load([settings.project.configs], environ=os.environ, environment=settings.environment)
    found = [each.spec.spec for each in loaded.documents if isinstance(each.spec, StorageDocument)]
    paths = {each.path for each in found if isinstance(each, SqliteStorageSpec)}
    return Path(paths.pop()) if len(paths) == 1 else None


def _key(path: Path) -> PublicKey:
    try:
        return PublicKey.load(path.read_bytes())
    except OSError as error:
        raise ProgramError(f"the key {path} cannot be read ({type(error).__name__})", help="check its path") from None


def taken_from(
    contents: Contents,
    about: dict[str, Any],
    *,
    content: bytes,
    use: Any = None,
    warning: str | None,
    until: datetime | None = None,
) -> Taken:
    """Written to a folder of its own, which goes when nobody reads in it any more."""
    folder = TemporaryDirectory(prefix="gateway-bundle-", ignore_cleanup_errors=True)
    write_to(Path(folder.name), contents)
    return Taken(
        Project(Path(folder.name, "configs"), Path(folder.name, "policies")),
        lambda: contents,
        digest_of(contents),
        about,
        folder.cleanup,
        use or _nothing,
        content,
        warning,
        until,
    )


def content_at(where: str) -> bytes:
    """Of a file or an address. Raises `BundleRefused`."""
    return fetched(where) if _is_address(where) else read(Path(where))


def fetched(url: str) -> bytes:
    """Raises `BundleRefused`. No redirect is followed, and nothing is asked in clear beyond this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and not _is_here(parts.hostname or ""):
        raise BundleRefused("a bundle is only fetched over https", help="write https://")
    try:
        request = Request(url, headers={"User-Agent": "agent-gateway"})  # noqa: S310 - checked
        with build_opener(_NoRedirect).open(request, timeout=_SECONDS) as answer:
            content = answer.read(LARGEST + 1)
    except HTTPError as error:
        with error:
            raise BundleRefused(f"the bundle cannot be fetched: its server answers {error.code}") from None
    except (URLError, OSError, HTTPException, ValueError) as error:
        raise BundleRefused(f"the bundle cannot be fetched ({type(error).__name__})") from None
    return bytes(content)


def read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST + 1)
    except OSError as error:
        raise BundleRefused(
            f"the bundle {path} cannot be read ({type(error).__name__})", help="check that it is there, and whose"
        ) from None


def write_whole(path: Path, content: bytes) -> None:
    """All of it or nothing, durable, and for nobody else's eyes."""
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
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time. The kernel lets go of the lock of a process that ends."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flock(handle, LOCK_EX)
        yield
    finally:
        os.close(handle)


def _plain(contents: Contents) -> bytes:
    now = datetime.now(UTC)
    return packed(contents, Manifest(1, now, now + _FOR_EVER, digests_of(contents)).encode())


def _digest(bundle: Bundle) -> str:
    return sha256(bundle.manifest_bytes).hexdigest()


def _is_address(where: str) -> bool:
    return where.startswith(("https://", "http://"))


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _nothing() -> None:
    pass


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **named: Any) -> None:
        return None
