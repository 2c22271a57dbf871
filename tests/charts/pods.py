"""Runs the containers of a rendered pod on this machine: arguments, variables, and mounted ConfigMaps.

Folders are below a given one, and the names of Services lead to ports of this machine; everything else is as rendered.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from tests.charts.helm import Manifest, containers_of, of_kind, pods_of

POD_IP: Final = "127.0.0.7"
"""Another loopback address, which gateways answer only if configured to."""

_RESOLVER: Final = """
import json, os, socket
known = json.loads(os.environ["SERVICES"])
plain = socket.getaddrinfo
def resolved(host, port, *rest, **more):
    return plain("127.0.0.1", known[host], *rest, **more) if host in known else plain(host, port, *rest, **more)
socket.getaddrinfo = resolved
"""

TOKEN: Final = "agw_ana_0123456789abcdef0123456789abcdef"
SECRETS: Final = {"gateway-callers": {"ana-token": TOKEN, "ana-sha256": sha256(TOKEN.encode()).hexdigest()}}
"""Secrets of the caller in the small examples."""

SERVED: Final = "Deployment/gateway"
TESTED: Final = "Pod/gateway-test"


def free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("0.0.0.0", 0))
        return first.getsockname()[1], second.getsockname()[1]


def get_json(address: str, port: int, path: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@dataclass
class LocalCluster:
    """The environment of pods. `secrets` are values by Secret and key, `services` are ports by name."""

    folder: Path
    manifests: Sequence[Manifest]
    secrets: Mapping[str, Mapping[str, str]]
    services: dict[str, int] = field(default_factory=dict)

    def run(self, pod: str, container: str) -> "subprocess.CompletedProcess[str]":
        """Run a container to its end."""
        command, env = self._prepared(pod, container)
        return subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, timeout=120)

    @contextmanager
    def started(self, pod: str, container: str, **more: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a container in the background; its process always ends with the block."""
        command, env = self._prepared(pod, container)
        process = subprocess.Popen(
            command, env={**env, **more}, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def here(self, text: str) -> str:
        """Map a path of a container to a path of this machine."""
        return str(self.folder / text.lstrip("/")) if text.startswith("/") else text

    def _prepared(self, pod: str, container: str) -> tuple[list[str], dict[str, str]]:
        spec = pods_of(self.manifests)[pod]
        (found,) = [each for each in containers_of(spec) if each["name"] == container]
        self.mount(spec, found)
        resolver = self.folder / "resolver"
        resolver.mkdir(exist_ok=True)
        (resolver / "sitecustomize.py").write_text(_RESOLVER, encoding="utf-8")
        services = json.dumps(self.services)
        env = {**self.variables(found), "SERVICES": services, "PYTHONPATH": str(resolver), "PATH": os.environ["PATH"]}
        program = found.get("command", ["gateway"])
        assert program[0] in ("gateway", "python"), "a program that the image has"
        start = [sys.executable, "-m", "gateway"] if program[0] == "gateway" else [sys.executable]
        return [*start, *program[1:], *map(self.here, found.get("args", []))], env

    def variables(self, container: Manifest, *, paths: bool = True) -> dict[str, str]:
        """Return the variables of a container; `paths` maps paths to this machine."""
        found: dict[str, str] = {}
        for each in container.get("env", []):
            source = each.get("valueFrom", {})
            if "secretKeyRef" in source:
                found[each["name"]] = self.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
            elif "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == "status.podIP"
                found[each["name"]] = POD_IP
            else:  # like Kubernetes, expand variables that were defined before
                value = re.sub(r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), each["value"])
                found[each["name"]] = self.here(value) if paths else value
        return found

    def mount(self, pod: Manifest, container: Manifest) -> None:
        """Put the volumes of a container where it expects them."""
        maps = {each["metadata"]["name"]: each["data"] for each in of_kind(self.manifests, "ConfigMap")}
        volumes = {each["name"]: each for each in pod["volumes"]}
        for mount in container.get("volumeMounts", []):
            folder = Path(self.here(mount["mountPath"]))
            folder.mkdir(parents=True, exist_ok=True)
            if volume := volumes[mount["name"]].get("configMap"):
                _project(folder, {item["path"]: maps[volume["name"]][item["key"]] for item in volume["items"]})
            elif "emptyDir" in volumes[mount["name"]] or "persistentVolumeClaim" in volumes[mount["name"]]:
                folder.chmod(0o2777)  # as permissive as volumes can be


def _project(folder: Path, files: Mapping[str, str]) -> None:
    """Write files as the node does: in a hidden folder, with links to them through another link."""
    if (folder / "..data").exists():
        return
    for path, text in files.items():
        file = folder / "..2026_11_16" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (folder / "..data").symlink_to("..2026_11_16")
    for top in {Path(path).parts[0] for path in files}:
        (folder / top).symlink_to(Path("..data", top))
