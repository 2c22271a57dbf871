"""The built image: its user, what it must not contain, and that it serves the chart's configuration.

Runs only on request: it needs minutes, root, podman, runc and debootstrap. The base is a Debian made here, and the
build finds its packages in a folder: no registry and no network.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from tests.charts.helm import cached, containers_of, pods_of, render_chart, with_packages
from tests.charts.pods import SECRETS, SERVED, TESTED, LocalCluster, free_ports, get_json
from tests.support.paths import ROOT

ASKED: Final = "GATEWAY_IMAGE"
LOCKS: Final = ("requirements-runtime.lock", "requirements-build.lock")
PROGRAMS: Final = ("podman", "runc", "debootstrap")
RESTRICTED: Final = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp")

pytestmark = pytest.mark.skipif(not os.environ.get(ASKED), reason=f"takes minutes: set {ASKED}=1 to run it")


@dataclass(frozen=True)
class Engine:
    """A podman with its own store."""

    store: Path

    def __call__(self, *arguments: str, within: float = 120) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=within)

    @property
    def command(self) -> list[str]:
        folders = ["--root", str(self.store / "root"), "--runroot", str(self.store / "run")]
        return ["podman", *folders, "--cgroup-manager", "cgroupfs", "--runtime", "runc"]

    def run(self, *arguments: str, entrypoint: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run the image to its end, with the restrictions of the chart's pods."""
        start = ["--entrypoint", entrypoint] if entrypoint else []
        return self("run", "--rm", *self.limits, *RESTRICTED, *start, "gateway:test", *arguments)

    @property
    def limits(self) -> list[str]:
        """Limits that are allowed for a container inside another; and no systemd timer."""
        return ["--no-healthcheck", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "host"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Yield an engine with the image built in it."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.getuid() != 0:
        pytest.skip(f"not here: {', '.join(missing)}" if missing else "only root can make the base image")
    base = cached("image-base", "bookworm", _make_base) / "base.tar"
    keys = "".join(sha256((ROOT / name).read_bytes()).hexdigest() for name in LOCKS)
    wheels = cached("image-wheels", keys, _fetch_wheels)
    found = Engine(tmp_path_factory.mktemp("podman"))
    try:
        imported = found("import", str(base), "localhost/base:test", within=300)
        assert imported.returncode == 0, imported.stderr
        arguments = {
            "BASE_IMAGE": "localhost/base:test",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": "/wheels",
            "VERSION": "9",
        }
        options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        options += ["--isolation", "chroot", "--format", "docker", "--volume", f"{wheels}:/wheels:ro"]
        built = found("build", *options, "--file", "Containerfile", "--tag", "gateway:test", str(ROOT), within=900)
        assert built.returncode == 0, built.stdout + built.stderr
        yield found
    finally:
        found("system", "reset", "--force")


def test_image_runs_the_gateway_as_a_number_on_a_root_it_cannot_write_to(engine: Engine) -> None:
    assert engine.run("--version").stdout.strip()
    assert engine.run("-c", "id -u; id -g", entrypoint="sh").stdout.split() == ["10001", "10001"]
    assert engine.run("-c", "touch /opt/x", entrypoint="sh").returncode == 1
    assert engine.run("-c", "touch /data/x /tmp/x", entrypoint="sh").returncode == 0


def test_image_has_no_build_tools_and_no_tests(engine: Engine) -> None:
    found = engine.run("-c", "command -v gcc cc make pip pip3 git; python -c 'import pip'", entrypoint="sh")

    assert found.stdout == ""
    assert "No module named 'pip'" in found.stderr
    assert engine.run("-c", "ls /source /build /wheel", entrypoint="sh").stdout == ""


def test_image_describes_itself(engine: Engine) -> None:
    (image,) = json.loads(engine("image", "inspect", "gateway:test").stdout)

    assert image["Config"]["User"] == "10001:10001"
    assert image["Config"]["Entrypoint"] == ["gateway"]
    assert image["Config"]["Cmd"] == ["serve"]
    assert image["Config"]["Labels"]["org.opencontainers.image.version"] == "9"
    assert image["Healthcheck"]["Test"][0] == "CMD"
    assert not re.search(r"(?i)(secret|token|password)=", " ".join(image["Config"]["Env"]))


def test_image_serves_what_the_chart_mounts_and_passes_its_test(engine: Engine, tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, render_chart("minimal"), SECRETS)
    data, admin = free_ports()
    ports = {"GATEWAY_PORT": str(data), "GATEWAY_ADMIN_PORT": str(admin)}

    with start_container(engine, cluster, ports) as name:
        checked = engine("run", "--rm", *engine.limits, *RESTRICTED, *options_of(cluster, TESTED, "check", {}))
        (_, _, script) = containers_of(pods_of(cluster.manifests)[TESTED])[1]["command"]
        hosts = ["--add-host", "gateway:127.0.0.1", "--add-host", "gateway-admin:127.0.0.1"]
        urls = {
            "TEST_READY_URL": f"http://gateway-admin:{admin}/readyz",
            "TEST_CALL_URL": f"http://gateway:{data}/v1/catalogues/starter/tools/price_quote/call",
        }
        options = options_of(cluster, TESTED, "call", urls, entrypoint="python", arguments=["-c", script])
        called = engine("run", "--rm", *engine.limits, *RESTRICTED, *hosts, *options)
        health = json.loads(engine("image", "inspect", "gateway:test").stdout)[0]["Healthcheck"]["Test"][1:]
        healthy = engine("exec", name, *health)
        stopped = engine("stop", "--time", "60", name)
        ended = engine("inspect", "--format", "{{.State.ExitCode}}", name)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert called.returncode == 0, called.stdout + called.stderr
    assert "call: 200" in called.stdout
    assert healthy.returncode == 0, healthy.stderr
    assert stopped.returncode == 0, stopped.stderr
    assert ended.stdout.strip() == "0"


def test_list_of_contents_names_every_pin_of_the_image(tmp_path: Path) -> None:
    home = with_packages("sbom", "cyclonedx-bom==7.5.0").parent
    work = tmp_path / "work"
    work.mkdir()
    for name in ("Makefile", "pyproject.toml", "requirements-runtime.lock"):
        shutil.copy(ROOT / name, work)

    done = subprocess.run(["make", "sbom", f"SBOM_HOME={home}"], cwd=work, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr
    sbom = json.loads((work / "dist" / "sbom.cdx.json").read_text(encoding="utf-8"))
    pinned = re.findall(
        r"^(\S+)==([^\s;]+)", (ROOT / "requirements-runtime.lock").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sbom["bomFormat"] == "CycloneDX"
    assert {(each["name"], each["version"]) for each in sbom["components"]} == set(pinned)


@contextmanager
def start_container(engine: Engine, cluster: LocalCluster, ports: dict[str, str]) -> Iterator[str]:
    """Run the gateway in a container and yield its name when it is up."""
    options = options_of(cluster, SERVED, "gateway", ports)
    done = engine("run", "--detach", "--name", "served", *engine.limits, *RESTRICTED, *options)
    assert done.returncode == 0, done.stderr
    try:
        for _ in range(300):
            try:
                if get_json("127.0.0.1", int(ports["GATEWAY_ADMIN_PORT"]), "/readyz")[0] == 200:
                    break
            except OSError:
                time.sleep(0.2)  # poll: the container does not announce that it is up
        else:
            raise AssertionError(engine("logs", "served").stdout)
        yield "served"
    finally:
        engine("rm", "--force", "served")


def options_of(
    cluster: LocalCluster,
    pod: str,
    container: str,
    more: dict[str, str],
    *,
    entrypoint: str = "gateway",
    arguments: Sequence[str] | None = None,
) -> list[str]:
    """Return the podman options that run a container of a pod."""
    spec = pods_of(cluster.manifests)[pod]
    (found,) = [each for each in containers_of(spec) if each["name"] == container]
    cluster.mount(spec, found)
    env = {**cluster.variables(found, paths=False), **more}
    options = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    for mount in found["volumeMounts"]:
        if mount["mountPath"] != "/tmp":
            access = "ro" if mount.get("readOnly") else "rw"
            options += ["--volume", f"{cluster.here(mount['mountPath'])}:{mount['mountPath']}:{access}"]
    options += ["--entrypoint", entrypoint, "gateway:test"]
    return [*options, *(found.get("args", []) if arguments is None else arguments)]


def _make_base(folder: Path) -> None:
    packages = "--include=python3,python3-venv,ca-certificates"
    command = ["debootstrap", "--variant=minbase", packages, "bookworm", str(folder / "root")]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    subprocess.run(["tar", "-C", str(folder / "root"), "-cf", str(folder / "base.tar"), "."], check=True, timeout=300)
    shutil.rmtree(folder / "root")


def _fetch_wheels(folder: Path) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    for name in LOCKS:  # for the Python of the base
        where = ["--python-version", "3.11", "--dest", str(folder), "-r", str(ROOT / name)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, *where], check=True, timeout=600)
