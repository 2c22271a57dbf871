"""A real PostgreSQL server for tests, on loopback, once per test process; each test has a database of its own."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp

import psycopg
import pytest

_PLACES = ("/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt")
_FAST = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB", "max_connections": "120"}


class Cluster:
    """One server. It may be stopped, started, frozen and thawed by tests that have it for themselves."""

    def __init__(self, binaries: Path, folder: Path, log: Path | None = None) -> None:
        """`log` is where the write-ahead log is, if it is not with the rest."""
        self._binaries = binaries
        self._folder = folder
        self._log = log
        self._as = ("runuser", "-u", "postgres", "--") if os.getuid() == 0 else ()
        self.port = _free_port()
        self._databases = 0

    def create(self) -> None:
        places = [self._folder, *([] if self._log is None else [self._log])]
        for place in places if self._as else []:
            shutil.chown(place, "postgres")
        apart = [] if self._log is None else [f"--waldir={self._log}/log"]
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "gateway", "-E", "UTF8", "--no-sync", *apart)

    def start(self, **settings: str) -> None:
        chosen = " ".join(f"-c {name}={value}" for name, value in {**_FAST, **settings}.items())
        options = f"-p {self.port} -k {self._folder} -h 127.0.0.1 {chosen}"
        self._run("pg_ctl", "-D", self._data, "-l", str(self._folder / "log"), "-o", options, "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    @property
    def is_running(self) -> bool:
        return (self._folder / "data" / "postmaster.pid").exists()

    @property
    def pid(self) -> int:
        return int((self._folder / "data" / "postmaster.pid").read_text().splitlines()[0])

    def pids(self) -> list[int]:
        """The server and everything that it started."""
        found = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=False)
        return [self.pid, *map(int, found.stdout.split())]

    def database(self, template: str = "template1") -> str:
        """The address of a new one."""
        self._databases += 1
        name = f"d{self._databases}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.address(name)

    def address(self, name: str) -> str:
        return f"postgresql://gateway@127.0.0.1:{self.port}/{name}"

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self._binaries / program), *arguments]
        done = subprocess.run(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False, cwd="/"
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr.decode()[-500:]}")


@contextmanager
def running_cluster(folder: Path | None = None, log: Path | None = None, **settings: str) -> Iterator[Cluster]:
    """Skips the test that asks where PostgreSQL cannot be had."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL on this machine (its programs are on no path)")
    folder = folder or Path(mkdtemp(prefix="gateway-postgres-"))
    cluster = Cluster(binaries, folder, log)
    try:
        try:
            cluster.create()
            cluster.start(**settings)
        except (RuntimeError, OSError, LookupError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"PostgreSQL cannot be started here: {error}")
        yield cluster
    finally:
        if cluster.is_running:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def new_database(postgres: Cluster) -> Callable[[], str]:
    """Makes a database that is set up already, and gives its address."""
    from gateway.storage.postgres.migrating import migrate

    with psycopg.connect(postgres.address("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE set_up")
    migrate(postgres.address("set_up"))
    return lambda: postgres.database("set_up")


def _binaries() -> Path | None:
    found = [path for place in _PLACES for path in sorted(Path(place).glob("*/bin"), reverse=True)]
    named = shutil.which("initdb")
    candidates = [*found, *([Path(named).resolve().parent] if named else [])]
    return next((path for path in candidates if (path / "initdb").exists() and (path / "pg_ctl").exists()), None)


def _free_port() -> int:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
