"""A real PostgreSQL server for tests, on loopback, once per test process; each test has its own database."""

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


class PostgresServer:
    """One server. Tests that have it to themselves may stop, start, freeze and thaw it."""

    def __init__(self, binaries: Path, folder: Path, log: Path | None = None) -> None:
        """`log` is the folder of the write-ahead log, if it is not with the data."""
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
        """Return the ids of the server process and its children."""
        found = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=False)
        return [self.pid, *map(int, found.stdout.split())]

    def database(self, template: str = "template1") -> str:
        """Create a database and return its address."""
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
def start_postgres(folder: Path | None = None, log: Path | None = None, **settings: str) -> Iterator[PostgresServer]:
    """Run a server; skip the test if PostgreSQL is not available."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL on this machine (its programs are on no path)")
    folder = folder or Path(mkdtemp(prefix="gateway-postgres-"))
    cluster = PostgresServer(binaries, folder, log)
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
def postgres() -> Iterator[PostgresServer]:
    with start_postgres() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def new_database(postgres: PostgresServer) -> Callable[[], str]:
    """Return a function that creates a migrated database and returns its address."""
    from gateway.storage.sql.postgres.database_setup import migrate_postgres

    with psycopg.connect(postgres.address("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE set_up")
    migrate_postgres(postgres.address("set_up"))
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
