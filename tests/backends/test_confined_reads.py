"""Programs can read and run only the system's folders and declared paths, whatever they try."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.command.backend import Command, CommandBackend
from gateway.backends.command.child_process import Confinement, HostControls
from gateway.backends.command.path_grants import NETWORK_READABLE, SYSTEM_READABLE, program_files
from gateway.backends.result_conversion import BackendUnusable
from gateway.model.tools.backend import BackendError
from tests.backends.invocations import Spool, invocation

pytestmark = pytest.mark.anyio

HOST = HostControls.detect()
confined = pytest.mark.skipif(HOST.landlock < 3 or not HOST.network, reason="the kernel has no Landlock")
PYTHON = tuple(dict.fromkeys((sys.base_prefix, sys.prefix)))
CANARY = "canary-4711"


def python(code: str, *rest: str, readable: tuple[str, ...] = (), **settings: Any) -> Command:
    return Command((sys.executable, "-I", "-S", "-c", code, *rest), readable=(*PYTHON, *readable), **settings)


async def run_program(command: Command) -> str:
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

    seen = await run_program(python(READ, *ways, readable=(str(shared),), network=network, writable=writable))

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

    seen = await run_program(python(code, str(shared), str(written), readable=(str(shared),), writable=(str(written),)))

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

    assert (await run_program(python(code, str(secret.parent)))).split() == ["refused"] * 7


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

    seen = await run_program(python(code, str(secret), str(shared), readable=(str(shared),), writable=writable))

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

        assert await run_program(python(code)) == "[]\n"


@confined
async def test_the_working_folder_is_readable_unless_it_is_the_root(shared: Path, secret: Path) -> None:
    inside = await run_program(python(READ, "note", "../undeclared/secret", folder=str(shared)))
    root = await run_program(python(READ, str(shared / "note"), str(secret), "etc/passwd", folder="/"))

    assert inside.splitlines() == ["a note", "refused"]
    assert root.split() == ["refused"] * 3


@confined
async def test_a_single_file_can_be_declared(secret: Path) -> None:
    other = secret.with_name("other")
    other.write_text(CANARY, encoding="ascii")

    assert (await run_program(python(READ, str(secret), str(other), readable=(str(secret),)))).split() == [
        CANARY,
        "refused",
    ]


@confined
async def test_everything_is_readable_where_that_is_declared(secret: Path) -> None:
    assert CANARY in await run_program(python(READ, str(secret), readable=("/",)))


@confined
async def test_a_program_elsewhere_runs_but_its_folder_stays_closed(tmp_path: Path, secret: Path) -> None:
    shutil.copy("/bin/cat", secret.parent / "show")
    script = secret.parent / "script"
    script.write_text(f"#!{secret.parent}/show\n{CANARY}\n", encoding="ascii")
    script.chmod(0o755)
    linked = tmp_path / "linked"
    linked.symlink_to(secret.parent / "show")

    assert CANARY in await run_program(Command((str(script),)))
    for program in (secret.parent / "show", linked):
        with pytest.raises(BackendError) as caught:
            await run_program(Command((str(program), str(secret))))
        assert "ermission denied" in caught.value.message
        assert "sandbox.readable" in caught.value.message


@confined
async def test_a_program_that_cannot_begin_names_the_cause(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!{tmp_path}/interpreter\n", encoding="ascii")
    script.chmod(0o755)
    (tmp_path / "interpreter").mkdir()

    with pytest.raises(BackendError, match=r"could not be started: PermissionError.*sandbox\.readable"):
        await run_program(Command((str(script),)))


@confined
async def test_environment_holds_the_declared_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATEWAY_SECRET", "OTEL_EXPORTER_OTLP_HEADERS", "HOME", "PATH", "LD_PRELOAD_NOT", "PYTHONPATH"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("PATH", os.defpath)

    seen = await run_program(Command(("/usr/bin/env",), environment={"A": "1", "TOKEN": lambda: "t"}))

    assert sorted(seen.split()) == ["A=1", "TOKEN=t"]


def test_folders_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendUnusable, match="does not exist"):
        CommandBackend(Command(("/bin/true",), readable=(str(tmp_path / "none"),)), HostControls(7, True))


def test_system_folders_hold_nothing_of_the_gateway_or_of_its_users() -> None:
    listed = {*SYSTEM_READABLE, *NETWORK_READABLE}

    assert not listed & {"/", "/etc", "/home", "/root", "/tmp", "/var", "/run", "/proc", "/sys", "/dev", "/opt", "/srv"}
    assert "/etc/passwd" not in listed


def test_files_of_a_network_come_with_a_network_alone() -> None:
    with_network: Any = Confinement(network="host").grants("/bin/true", None).launcher_settings()
    without: Any = Confinement(network="none").grants("/bin/true", None).launcher_settings()

    hosts = os.path.realpath("/etc/hosts")
    assert hosts in with_network["files"]
    assert hosts not in without["files"]
    assert all(Path(each).is_dir() for each in with_network["readable"])
    assert all(Path(each).exists() and not Path(each).is_dir() for each in with_network["files"])


def test_scripts_that_run_each_other_are_followed_only_so_far(tmp_path: Path) -> None:
    script = tmp_path / "round"
    script.write_text(f"#!{script}\n", encoding="ascii")

    assert program_files(str(script), ()) == [str(script)] * 5
    assert program_files(str(script), (str(tmp_path),)) == [str(script)]
    assert program_files(str(tmp_path / "none"), ()) == []
    script.write_text("#!\n", encoding="ascii")
    assert program_files(str(script), ()) == [str(script)]


@pytest.mark.parametrize(
    ("first_line", "interpreter"),
    [
        (b"#!%s\n", "sh"),
        (b"#! \t%s -e\n", "sh"),
        (b"#!%s\t-e", "sh"),
        (b"#!%s\0\n", "sh"),
        (b"#!%s\x0b\n", "sh\x0b"),
        (b"#!%s\x0c -e\n", None),
        (b"#!%s\r\n", None),
        (b"#!\x0b%s\n", None),
        (b"#!" + b" " * 250 + b"%s\n", None),
    ],
)
def test_first_lines_are_read_as_the_kernel_reads_them(
    tmp_path: Path, first_line: bytes, interpreter: str | None
) -> None:
    (tmp_path / "sh").touch()
    (tmp_path / "sh\x0b").touch()
    script = tmp_path / "script"
    script.write_bytes(first_line % os.fsencode(tmp_path / "sh"))

    expected = [] if interpreter is None else [str(tmp_path / interpreter)]
    assert program_files(str(script), ()) == [str(script), *expected]


def test_interpreters_are_regular_files(tmp_path: Path) -> None:
    script = tmp_path / "script"
    for interpreter in ("/", "/dev/null", "relative", str(tmp_path)):
        script.write_text(f"#!{interpreter}\n", encoding="ascii")
        assert program_files(str(script), ()) == [str(script)]


def test_advice_is_given_where_reads_are_confined_and_something_was_refused() -> None:
    assert Confinement().advice("cat: x: Permission denied")
    assert not Confinement().advice("no such order")
    assert not Confinement(readable=("/",)).advice("cat: x: Permission denied")


PLANT = """
import os, sys
secret, replaced = sys.argv[1:]
try:
    print(open(secret).read())
except PermissionError:
    print("refused")
if not os.path.islink(replaced):
    os.rename(replaced, replaced + "-before")
    os.symlink("/", replaced)
"""


@confined
@pytest.mark.parametrize("granted", ["workdir", "readable", "writable", "above the workdir", "above a folder"])
async def test_a_folder_that_a_program_replaces_with_a_link_grants_nothing(
    tmp_path: Path, secret: Path, granted: str
) -> None:
    own = tmp_path / "own"
    inner = own / "replaced" / "tmp" if "above" in granted else own / "replaced"
    inner.mkdir(parents=True)
    settings: dict[str, dict[str, Any]] = {
        "workdir": {"folder": str(inner)},
        "readable": {"readable": (str(inner),)},
        "writable": {"writable": (str(own), str(inner))},
        "above the workdir": {"folder": str(inner)},
        "above a folder": {"readable": (str(inner),)},
    }
    declared = {"writable": (str(own),), **settings[granted]}
    command = python(PLANT, str(secret), str(own / "replaced"), **declared)
    backend = CommandBackend(command, HOST)

    spool = Spool()
    await backend.run(invocation({}, spool))
    assert spool.kept[0] == b"refused\n"
    with pytest.raises(BackendError, match="has become a link"):
        await backend.run(invocation({}, Spool()))
    with pytest.raises(BackendUnusable, match="which the program itself can change") as caught:
        CommandBackend(command, HOST)
    assert caught.value.help is not None


@confined
async def test_links_of_other_people_are_followed_when_a_tool_is_loaded(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "link").symlink_to(shared)
    own = tmp_path / "own"
    own.mkdir()
    through = str(tmp_path / "link")

    command = python(READ, "note", folder=through, readable=(through,), writable=(str(own),))

    assert await run_program(command) == "a note\n"


@confined
async def test_a_script_that_rewrites_itself_is_granted_no_interpreter(tmp_path: Path, secret: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    script = own / "script"
    (own / "link").symlink_to("/")
    (own / "link\x0b").symlink_to("/bin/sh")
    read = f"cat {secret} || true\n"
    rewrite = f"printf '#!{own}/link\\013\\n' > {own}/new; echo '{read.strip()}' >> {own}/new\n"
    script.write_text(f"#!/bin/sh\n{read}{rewrite}cat {own}/new > {script}\n", encoding="ascii")
    script.chmod(0o755)
    command = Command((str(script),), writable=(str(own),), environment={"PATH": os.defpath})
    backend = CommandBackend(command, HOST)

    for _ in range(2):
        spool = Spool()
        await backend.run(invocation({}, spool))
        assert CANARY.encode() not in b"".join(spool.kept)
    assert b"link\x0b" in script.read_bytes()
    assert CANARY not in await run_program(command)


@confined
@pytest.mark.parametrize("where", ["system", "declared", "elsewhere"])
async def test_interpreters_of_a_script_in_its_own_folder(tmp_path: Path, where: str) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    shutil.copy("/bin/cat", other / "cat")
    script = own / "script"
    interpreter = "/bin/cat" if where == "system" else str(other / "cat")
    script.write_text(f"#!{interpreter}\nits text\n", encoding="ascii")
    script.chmod(0o755)
    command = Command((str(script),), writable=(str(own),), readable=(str(other),) if where == "declared" else ())

    if where == "elsewhere":
        with pytest.raises(BackendError, match=r"PermissionError.*sandbox\.readable"):
            await run_program(command)
    else:
        assert "its text" in await run_program(command)


@confined
async def test_a_file_that_becomes_a_folder_is_not_granted(tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copy("/bin/true", program)
    backend = CommandBackend(Command((str(program),)), HOST)
    program.unlink()
    program.mkdir()

    with pytest.raises(BackendError, match="is a folder now"):
        await backend.run(invocation({}, Spool()))
