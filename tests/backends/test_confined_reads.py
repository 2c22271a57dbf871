"""What a program may read and run: the system's folders and what is declared, however it goes about it."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from invocations import Spool, invocation

from gateway.backends.command import Command, CommandBackend
from gateway.backends.processes import NETWORK_READABLE, SYSTEM_READABLE, Confinement, HostControls, program_files
from gateway.backends.refusals import BackendUnusable
from gateway.governance.ports import BackendFailed

pytestmark = pytest.mark.anyio

HOST = HostControls.of_this_host()
confined = pytest.mark.skipif(HOST.landlock < 3 or not HOST.network, reason="the kernel has no Landlock")
PYTHON = tuple(dict.fromkeys((sys.base_prefix, sys.prefix)))
CANARY = "canary-4711"


def python(code: str, *rest: str, readable: tuple[str, ...] = (), **settings: Any) -> Command:
    return Command((sys.executable, "-I", "-S", "-c", code, *rest), readable=(*PYTHON, *readable), **settings)


async def printed(command: Command) -> str:
    spool = Spool()
    async with asyncio.timeout(60):
        await CommandBackend(command, HOST).run(invocation({}, spool))
    return spool.kept[0].decode()


READ = """
import sys
for path in sys.argv[1:]:
    try:
        with open(path, "rb") as file:
            print(file.read(1000).decode("utf-8", "replace"))
    except PermissionError:
        print("refused")
"""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "undeclared"
    folder.mkdir()
    (folder / "secret").write_text(CANARY, encoding="ascii")
    return folder / "secret"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    (folder / "note").write_text("a note", encoding="ascii")
    return folder


@confined
@pytest.mark.parametrize("network", ["none", "host"])
@pytest.mark.parametrize("writes", ["nowhere", "here", "anywhere"])
async def test_undeclared_files_are_out_of_reach(secret: Path, shared: Path, network: Any, writes: str) -> None:
    (shared / "link").symlink_to(secret)
    (shared / "up").symlink_to("../undeclared")
    ways = [
        str(secret),
        str(shared / "link"),
        str(shared / "up" / "secret"),
        str(shared / ".." / "undeclared" / "secret"),
        f"/proc/self/root{secret}",
        f"/proc/self/cwd{secret}",
        f"/proc/{os.getpid()}/root{secret}",
        f"/proc/{os.getpid()}/environ",
        f"/proc/{os.getpid()}/cmdline",
        "/proc/1/environ",
        "/etc/passwd",
        "/etc/shadow",
        "/etc/hostname",
    ]
    writable = {"nowhere": (), "here": (str(shared),), "anywhere": ("/",)}[writes]

    seen = await printed(python(READ, *ways, readable=(str(shared),), network=network, writable=writable))

    assert seen.split() == ["refused"] * len(ways)


@confined
async def test_declared_folders_are_read_listed_and_run_from(shared: Path, tmp_path: Path) -> None:
    shutil.copy("/bin/echo", shared / "say")
    written = tmp_path / "written"
    written.mkdir()
    (written / "old").write_text("old", encoding="ascii")
    code = (
        "import os, subprocess, sys\n"
        "shared, written = sys.argv[1:]\n"
        "print(open(shared + '/note').read(), sorted(os.listdir(shared)), open(written + '/old').read(), flush=True)\n"
        "subprocess.run([shared + '/say', 'it runs'])"
    )

    seen = await printed(python(code, str(shared), str(written), readable=(str(shared),), writable=(str(written),)))

    assert seen.splitlines() == ["a note ['note', 'say'] old", "it runs"]


@confined
async def test_undeclared_folders_are_neither_listed_nor_run_from(secret: Path) -> None:
    shutil.copy("/bin/echo", secret.parent / "say")
    code = (
        "import os, subprocess, sys\n"
        "def tried(action):\n"
        "    try:\n        action(); return 'could'\n"
        "    except PermissionError:\n        return 'refused'\n"
        "folder = sys.argv[1]\n"
        "loader = '/lib64/ld-linux-x86-64.so.2'\n"
        "print(tried(lambda: os.listdir(folder)), tried(lambda: os.listdir('/proc')), tried(lambda: os.listdir('/')),\n"
        "      tried(lambda: os.listdir('/tmp')), tried(lambda: os.listdir('/etc')),\n"
        "      tried(lambda: subprocess.run([folder + '/say', 'it runs'], stdout=sys.stderr)),\n"
        "      'refused' if not os.path.exists(loader) or subprocess.run([loader, folder + '/say', 'x']).returncode\n"
        "      else 'could')"
    )

    assert (await printed(python(code, str(secret.parent)))).split() == ["refused"] * 7


@confined
@pytest.mark.parametrize("writes", ["here", "anywhere"])
async def test_a_file_cannot_be_brought_to_where_it_could_be_read(secret: Path, shared: Path, writes: str) -> None:
    code = (
        "import os, sys\n"
        "secret, shared = sys.argv[1:]\n"
        "for action in (os.link, os.rename):\n"
        "    try:\n        action(secret, shared + '/mine'); print(open(shared + '/mine').read())\n"
        "    except OSError:\n        print('refused')\n"
        "os.symlink(secret, shared + '/linked')\n"
        "try:\n    print(open(shared + '/linked').read())\n"
        "except PermissionError:\n    print('refused')"
    )
    writable = (str(shared),) if writes == "here" else ("/",)

    seen = await printed(python(code, str(secret), str(shared), readable=(str(shared),), writable=writable))

    assert seen.split() == ["refused"] * 3
    assert secret.read_text(encoding="ascii") == CANARY


@confined
async def test_open_files_of_the_gateway_are_not_passed_on(secret: Path) -> None:
    code = (
        "import os\n"
        "def is_open(handle):\n"
        "    try:\n        os.fstat(handle); return True\n"
        "    except OSError:\n        return False\n"
        "print([handle for handle in range(3, 4096) if is_open(handle)])"
    )
    with secret.open("rb") as file:
        os.set_inheritable(file.fileno(), True)

        assert await printed(python(code)) == "[]\n"


@confined
async def test_the_working_folder_is_readable_unless_it_is_the_root(shared: Path, secret: Path) -> None:
    inside = await printed(python(READ, "note", "../undeclared/secret", folder=str(shared)))
    root = await printed(python(READ, str(shared / "note"), str(secret), "etc/passwd", folder="/"))

    assert inside.splitlines() == ["a note", "refused"]
    assert root.split() == ["refused"] * 3


@confined
async def test_a_single_file_can_be_declared(secret: Path) -> None:
    other = secret.with_name("other")
    other.write_text(CANARY, encoding="ascii")

    assert (await printed(python(READ, str(secret), str(other), readable=(str(secret),)))).split() == [
        CANARY,
        "refused",
    ]


@confined
async def test_everything_is_readable_where_that_is_said(secret: Path) -> None:
    assert CANARY in await printed(python(READ, str(secret), readable=("/",)))


@confined
async def test_a_program_elsewhere_runs_but_its_folder_stays_closed(tmp_path: Path, secret: Path) -> None:
    shutil.copy("/bin/cat", secret.parent / "show")
    script = secret.parent / "script"
    script.write_text(f"#!{secret.parent}/show\n{CANARY}\n", encoding="ascii")
    script.chmod(0o755)
    linked = tmp_path / "linked"
    linked.symlink_to(secret.parent / "show")

    assert CANARY in await printed(Command((str(script),)))
    for program in (secret.parent / "show", linked):
        with pytest.raises(BackendFailed) as caught:
            await printed(Command((str(program), str(secret))))
        assert "ermission denied" in caught.value.message
        assert "sandbox.readable" in caught.value.message


@confined
async def test_a_program_that_cannot_begin_says_what_to_look_at(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{tmp_path}/interpreter\n", encoding="ascii")
    script.chmod(0o755)
    (tmp_path / "interpreter").mkdir()

    with pytest.raises(BackendFailed, match=r"could not be started: PermissionError.*sandbox\.readable"):
        await printed(Command((str(script),)))


@confined
async def test_environment_holds_the_declared_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATEWAY_SECRET", "OTEL_EXPORTER_OTLP_HEADERS", "HOME", "PATH", "LD_PRELOAD_NOT", "PYTHONPATH"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("PATH", os.defpath)

    seen = await printed(Command(("/usr/bin/env",), environment={"A": "1", "TOKEN": lambda: "t"}))

    assert sorted(seen.split()) == ["A=1", "TOKEN=t"]


def test_folders_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendUnusable, match="is not there"):
        CommandBackend(Command(("/bin/true",), readable=(str(tmp_path / "none"),)), HostControls(7, True))


def test_system_folders_hold_nothing_of_the_gateway_or_of_its_users() -> None:
    listed = {*SYSTEM_READABLE, *NETWORK_READABLE}

    assert not listed & {"/", "/etc", "/home", "/root", "/tmp", "/var", "/run", "/proc", "/sys", "/dev", "/opt", "/srv"}
    assert "/etc/passwd" not in listed


def test_files_of_a_network_come_with_a_network_alone() -> None:
    with_network = Confinement(network="host").all_readable("/bin/true", None)
    without = Confinement(network="none").all_readable("/bin/true", None)

    assert "/etc/hosts" in with_network
    assert "/etc/hosts" not in without
    assert all(Path(each).exists() for each in with_network)


def test_scripts_that_run_each_other_are_followed_only_so_far(tmp_path: Path) -> None:
    script = tmp_path / "round"
    script.write_text(f"#!{script}\n", encoding="ascii")

    assert program_files(str(script)) == [str(script)] * 5
    assert program_files(str(tmp_path / "none")) == [str(tmp_path / "none")]
    script.write_text("#!\n", encoding="ascii")
    assert program_files(str(script)) == [str(script)]


def test_advice_is_given_where_reads_are_confined_and_something_was_refused() -> None:
    assert Confinement().advice("cat: x: Permission denied")
    assert not Confinement().advice("no such order")
    assert not Confinement(readable=("/",)).advice("cat: x: Permission denied")
