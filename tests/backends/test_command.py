"""Command backends: what a program gets, what it cannot reach, and that it leaves nothing behind."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import Media
from gateway.backends.command import launcher
from gateway.backends.command.backend import Command, CommandBackend, fill_argv
from gateway.backends.command.child_process import HostControls
from gateway.backends.result_conversion import BackendUnusable, MediaTemplate
from gateway.model.tools.backend import BackendError
from tests.backends.invocations import Spool, TooMuch, invocation, is_gone, other_tasks

pytestmark = pytest.mark.anyio

HOST = HostControls.detect()
ALL = HostControls(landlock=7, network=True)
NOTHING = HostControls()
confined = pytest.mark.skipif(
    not HOST.network or HOST.landlock < 3, reason="this host has no user namespaces or no Landlock"
)

ARGV = "import json, sys; print(json.dumps(sys.argv[1:]))"
INJECTIONS = [
    "; touch MARKER",
    "| touch MARKER",
    "& touch MARKER",
    "&& touch MARKER",
    "|| touch MARKER",
    "`touch MARKER`",
    "$(touch MARKER)",
    "${IFS}touch${IFS}MARKER",
    "\ntouch MARKER\n",
    "\r\ntouch MARKER",
    "'; touch MARKER; '",
    '"; touch MARKER; "',
    "a'$(touch MARKER)'b",
    "> MARKER",
    "< /etc/passwd > MARKER",
    "$((1+1))",
    "!!",
    "*",
    "~root",
    "{a,b}",
    "{other}",
    "{0.__class__}",
    "{{ 7*7 }}",
    "%(name)s",
    "${HOME}",
    "env:HOME",
    "file:/etc/passwd",
    "\\",
    "\t",
    " ",
    "",
    "‐-upload-pack=touch",
    "ü\u202e\u200b",
    "a" * 90_000,
]
OPTIONS = ["-", "--", "-o", "--upload-pack=touch MARKER", "--output=MARKER", "-oProxyCommand=touch MARKER", "-1"]


def python(code: str, *rest: str, **settings: Any) -> Command:
    return Command(
        (sys.executable, "-I", "-S", "-c", code, *rest),
        **{"network": "host", "readable": ("/",), "writable": ("/",), **settings},
    )


async def run_command(command: Command, args: dict[str, Any], *, spool: Spool | None = None) -> bytes:
    spool = spool or Spool()
    backend = CommandBackend(command, HOST)
    async with asyncio.timeout(30):
        await backend.run(invocation(args, spool))
    return spool.kept[0]


async def failure(command: Command, args: dict[str, Any] | None = None) -> BackendError:
    spool = Spool()
    with pytest.raises(BackendError) as caught:
        await run_command(command, args or {}, spool=spool)
    assert spool.kept == []
    return caught.value


async def test_output_is_kept_exactly() -> None:
    assert await run_command(python("import os; os.write(1, b'a\\xff\\x00\\r\\n')"), {}) == b"a\xff\x00\r\n"


@pytest.mark.parametrize(
    ("value", "text"), [("a b", "a b"), (5, "5"), (1.5, "1.5"), (True, "true"), (False, "false"), (0, "0")]
)
async def test_values_become_one_argument_each(value: Any, text: str) -> None:
    seen = json.loads(await run_command(python(ARGV, "before", "{value}", "after"), {"value": value}))

    assert seen == ["before", text, "after"]


@pytest.mark.parametrize("value", INJECTIONS, ids=range(len(INJECTIONS)))
async def test_hostile_value_stays_one_argument(value: str, tmp_path: Path) -> None:
    value = value.replace("MARKER", str(tmp_path / "marker"))

    seen = json.loads(await run_command(python(ARGV, "--", "{value}", folder=str(tmp_path)), {"value": value}))

    assert seen == ["--", value]
    assert list(tmp_path.iterdir()) == []


async def test_hundreds_of_hostile_values_arrive_as_they_are(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    commands = [
        f"touch {marker}",
        f"touch${{IFS}}{marker}",
        f"{{touch,{marker}}}",
        f"t''ouch {marker}",
        f"/???/t*h {marker}",
    ]
    joints = [
        ";",
        "|",
        "||",
        "&",
        "&&",
        "\n",
        "\r\n",
        "%0a",
        "`",
        "$(",
        "<(",
        ">(",
        "';",
        '";',
        "\\n",
        "#\n",
        "${IFS};",
    ]
    ends = ["", ";", "`", ")", "#", "'", '"', "\\"]
    values = {
        f"v{number}": f"x{joint}{command}{end}"
        for number, (joint, command, end) in enumerate(product(joints, commands, ends))
    }

    seen = json.loads(
        await run_command(python(ARGV, *(f"{{{name}}}" for name in values), folder=str(tmp_path)), values)
    )

    assert seen == list(values.values())
    assert len(seen) == 680
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [*OPTIONS, -1, -0.5, float("-inf")], ids=str)
@pytest.mark.parametrize("before", ["log", "--"])
async def test_value_that_looks_like_an_option_is_refused(value: Any, before: str) -> None:
    refused = await failure(python(ARGV, before, "{value}"), {"value": value})

    assert refused.word == "invalid"
    assert refused.message == "argument 'value' starts with '-' and could be taken for an option"


@pytest.mark.parametrize("listed", [{"enum": ["-l", "-a"]}, {"const": "-l"}], ids=["enum", "const"])
async def test_option_that_the_schema_lists_is_allowed(listed: dict[str, Any]) -> None:
    schema = {"properties": {"value": listed}}

    assert json.loads(await run_command(python(ARGV, "{value}", schema=schema), {"value": "-l"})) == ["-l"]
    assert (await failure(python(ARGV, "{value}", schema=schema), {"value": "-la"})).word == "invalid"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "was not given"),
        ([1], "is not a text, a number or a boolean"),
        ({"a": 1}, "is not a text, a number or a boolean"),
        ("a\x00b", "holds NUL"),
        ("\ud800", "contains an unpaired surrogate"),
        ("a" * 100_001, "has more than 100000 bytes"),
    ],
    ids=["null", "list", "object", "nul", "surrogate", "huge"],
)
async def test_value_that_is_no_argument_is_refused(value: Any, reason: str) -> None:
    refused = await failure(python(ARGV, "{value}"), {"value": value})

    assert (refused.word, refused.message) == ("invalid", f"argument 'value' {reason}")


@given(st.text().filter(lambda text: not text.startswith("-") and "\x00" not in text))
def test_filled_list_is_as_long_as_its_template(value: str) -> None:
    assert fill_argv(("/bin/x", "{value}", "z"), {"value": value}, schema={}) == ["/bin/x", value, "z"]


@pytest.mark.parametrize(
    "argv",
    [(), ("git",), ("/usr/../bin/git",), ("/bin/{x}",), ("/bin/cat", "--file={x}"), ("/bin/cat", "a\x00b"), ("/nope",)],
    ids=["empty", "relative", "dots", "placeholder", "partial", "nul", "missing"],
)
def test_template_that_is_not_fixed_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(BackendUnusable):
        CommandBackend(Command(argv), ALL)


async def test_environment_is_exactly_the_declared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_DATABASE_PASSWORD", "hunter22")
    command = Command(
        ("/usr/bin/env",),
        environment={"A": "1", "TOKEN": lambda: "s3cret"},
        network="host",
        readable=("/",),
        writable=("/",),
    )

    assert sorted((await run_command(command, {})).splitlines()) == [b"A=1", b"TOKEN=s3cret"]
    assert "s3cret" not in repr(command)


async def test_secret_is_redacted_in_messages() -> None:
    code = "import os, sys; sys.exit(f'cannot use {os.environ[chr(84)]}')"
    failed = await failure(python(code, environment={"T": lambda: "s3cret-token"}))

    assert failed.message == "the program failed: it ended with status 1: cannot use [redacted]"


async def test_secret_that_cannot_be_read_stops_the_call() -> None:
    def missing() -> str:
        raise OSError("/run/secrets/x is missing")

    failed = await failure(python("print(1)", environment={"T": missing}))

    assert (failed.word, failed.message) == ("unavailable", "a secret of the tool cannot be read")


async def test_program_starts_in_its_folder_with_nothing_open(tmp_path: Path) -> None:
    code = "import os\nprint(os.getcwd(), os.read(0, 1), os.getpid() == os.getsid(0), len(os.listdir('/proc/self/fd')))"
    with ExitStack() as stack:
        for _ in range(20):
            handle = stack.enter_context(open(os.devnull))
            os.set_inheritable(handle.fileno(), True)
        seen = await run_command(python(code, folder=str(tmp_path)), {})

    # the fourth is the folder that lists them
    assert seen.decode() == f"{tmp_path} b'' True 4\n"


async def test_other_exit_status_fails_with_what_was_complained() -> None:
    failed = await failure(python("import sys; print('half'); sys.exit('no\\x1b[31m such\\nfile')"))

    assert (failed.word, failed.message) == (
        "failed",
        r"the program failed: it ended with status 1: no\x1b[31m such\nfile",
    )


async def test_expected_failure_shows_its_output() -> None:
    code = "import sys; print('nothing found'); sys.exit(3)"

    assert (await failure(python(code, failed=(3,)))).message == "nothing found"
    assert await run_command(python(code, ok=(0, 3)), {}) == b"nothing found\n"


async def test_long_complaint_is_cut() -> None:
    failed = await failure(python("import sys; sys.exit('x' * 10_000_000)"))

    assert len(failed.message) < 2200


async def test_declared_json_is_checked() -> None:
    assert await run_command(python("print('{\"a\": 1}')", output="json"), {}) == b'{"a": 1}\n'
    for text in ("{", "", "NaN", "[" * 20_000):
        assert (await failure(python(f"print({text!r})", output="json"))).message == "the result is not JSON"


async def test_json_past_its_limit_is_refused() -> None:
    assert "more than 10 bytes" in (await failure(python("print('1' * 11)", output="json", max_json=10))).message


async def test_output_becomes_declared_media() -> None:
    template = MediaTemplate("image", "image/png", "a.png", "first-party", "inert")
    made = await CommandBackend(python("print('png')", media=template), HOST).run(invocation({}))

    assert isinstance(made, Media)
    assert await made.as_bytes() == b"png\n"


async def test_program_starts_with_the_usual_signals() -> None:
    command = Command(("/bin/grep", "SigIgn", "/proc/self/status"), network="host", readable=("/",), writable=("/",))

    _, ignored = (await run_command(command, {})).split()

    of_the_c_library = 1 << 31 | 1 << 32  # only the C library controls these two
    assert int(ignored, 16) & ~of_the_c_library == 0


async def test_launcher_that_fails_reports_it(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/nowhere/interpreter\n", encoding="ascii")
    program.chmod(0o755)

    failed = await failure(Command((str(program),), network="host", readable=("/",), writable=("/",)))

    assert failed.message.startswith("the program could not be started: FileNotFoundError")


async def test_program_cannot_pass_for_the_launcher() -> None:
    failed = await failure(python("import sys; print('OSError: fake', file=sys.stderr); sys.exit(125)"))

    assert failed.message == "the program failed: it ended with status 125: OSError: fake"


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"network": "none", "writable": ("/",)}, "keep a program off the network"),
        ({"network": "host", "writable": ()}, "keep a program from writing files"),
        ({"network": "host", "writable": ("/tmp",)}, "keep a program from writing files"),
        ({"network": "host", "readable": ()}, "keep a program from reading files"),
        ({"network": "host", "readable": ("/tmp",)}, "keep a program from reading files"),
    ],
    ids=["network", "nothing writable", "one folder", "nothing readable", "one readable folder"],
)
def test_limit_that_cannot_be_enforced_is_refused(settings: dict[str, Any], missing: str) -> None:
    with pytest.raises(BackendUnusable) as caught:
        CommandBackend(python("", **settings), NOTHING)

    assert missing in caught.value.message
    assert caught.value.help is not None


def test_going_without_limits_has_to_be_declared() -> None:
    CommandBackend(python(""), NOTHING)


@confined
async def test_program_without_network_reaches_no_host() -> None:
    code = (
        "import socket, sys\n"
        "try:\n    socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2); print('connected')\n"
        "except OSError as error:\n    print(type(error).__name__)"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        alone = await run_command(python(code, "{port}", network="none"), {"port": port})
        open_ = await run_command(python(code, "{port}", network="host"), {"port": port})

    assert (alone, open_) == (b"OSError\n", b"connected\n")


@confined
def test_program_behind_a_filter_opens_unix_sockets_only() -> None:
    settings: dict[str, Any] = {"environment": [], "network": "filtered", "limits": {}}
    settings |= {"readable": None, "files": [], "writable": None, "folder": None}
    code = (
        "import socket, subprocess, sys\n"
        "def tried(family):\n"
        "    try:\n        socket.socket(family, socket.SOCK_DGRAM).close(); return True\n"
        "    except PermissionError:\n        return False\n"
        "families = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, 40)\n"
        "print([tried(family) for family in families], flush=True)\n"
        "again = open('/proc/self/cmdline').read().split(chr(0))[:3]\n"
        "if len(sys.argv) == 1: subprocess.run([*again, 'again'])"
    )

    run = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            launcher.__file__,
            launcher.settings_argument(settings),
            sys.executable,
            "-c",
            code,
        ],
        capture_output=True,
        text=True,
    )

    assert run.stdout == "[True, False, False, False, False]\n" * 2, run.stderr


@confined
@pytest.mark.parametrize("network", ["none", "host"])
async def test_program_writes_only_where_it_may(tmp_path: Path, network: str) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "old").write_text("old", encoding="ascii")
    code = (
        "import os, sys\n"
        "def tried(action, *args):\n"
        "    try:\n        action(*args); return True\n"
        "    except PermissionError:\n        return False\n"
        "inside, outside = sys.argv[1:]\n"
        "print([tried(open, '/dev/null', 'w'), tried(open, inside + '/a', 'w'), tried(open, outside + '/a', 'w'),\n"
        "       tried(os.unlink, outside + '/old'), tried(os.truncate, outside + '/old', 0),\n"
        "       tried(os.rename, outside + '/old', inside + '/old'), tried(os.mkdir, outside + '/b'),\n"
        "       tried(os.symlink, 'x', outside + '/c'), open(outside + '/old').read()])"
    )

    seen = await run_command(
        python(code, "{inside}", "{outside}", network=network, writable=(str(inside),)),
        {"inside": str(inside), "outside": str(outside)},
    )

    assert seen.decode() == "[True, True, False, False, False, False, False, False, 'old']\n"
    assert [path.name for path in inside.iterdir()] == ["a"]


async def test_program_that_may_write_anywhere_moves_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()

    await run_command(python("import os; os.rename('file', 'folder/file')", folder=str(tmp_path)), {})

    assert (tmp_path / "folder" / "file").exists()


@confined
async def test_program_cannot_look_into_or_signal_the_gateway() -> None:
    code = (
        "import os\n"
        "for attempt in (lambda: open(f'/proc/{os.getppid()}/environ').read(), lambda: os.kill(os.getppid(), 0)):\n"
        "    try:\n        attempt(); print('could')\n"
        "    except PermissionError:\n        print('could not')"
    )

    assert (await run_command(python(code, network="none", writable=()), {})).split(b"\n")[0] == b"could not"
    seen = await run_command(python(code), {})
    assert seen == b"could not\ncould not\n" or HOST.landlock < 6


@pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64", "riscv64") or sys.platform != "linux", reason="no filter is known"
)
@pytest.mark.parametrize("network", ["host", "none"])
async def test_program_changes_limits_and_scheduling_of_itself_alone(network: str) -> None:
    code = (
        "import ctypes, os, resource\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "own = {'x86_64': (314, 251)}.get(os.uname().machine, (274, 30))\n"
        "attributes = (ctypes.c_uint32 * 12)(48, 0, 0, 0, 5)\n"
        "def call(number, *args):\n"
        "    if libc.syscall(number, *args) < 0: raise OSError(ctypes.get_errno(), 'refused')\n"
        "attempts = (\n"
        "    lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE),\n"
        "    lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE)),\n"
        "    lambda pid: os.sched_setaffinity(pid, os.sched_getaffinity(0)),\n"
        "    lambda pid: os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0)),\n"
        "    lambda pid: os.sched_setparam(pid, os.sched_param(0)),\n"
        "    lambda pid: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0)),\n"
        "    lambda pid: os.setpriority(os.PRIO_USER if pid else os.PRIO_PGRP, 0, 1),\n"
        "    lambda pid: call(own[0], pid, attributes, 0),\n"
        "    lambda pid: call(own[1], 1, pid, 2 << 13 | 4),\n"
        "    lambda pid: call(own[1], 3 if pid else 2, 0, 2 << 13 | 4),\n"
        ")\n"
        "def tried(attempt, pid):\n"
        "    try:\n        attempt(pid); return 'could'\n"
        "    except PermissionError:\n        return 'refused'\n"
        "for pid in (0, os.getppid()):\n"
        "    print(*[tried(attempt, pid) for attempt in attempts])"
    )

    mine, others = (await run_command(python(code, network=network), {})).decode().splitlines()

    assert mine.split() == ["could"] * 10
    assert others.split() == ["refused"] * 10


async def test_program_has_no_capabilities() -> None:
    seen = await run_command(
        python("print([line for line in open('/proc/self/status') if line.startswith('CapEff')])"), {}
    )

    assert b"CapEff:\\t0000000000000000" in seen


async def test_processor_time_is_limited() -> None:
    failed = await failure(python("while True: pass", cpu=timedelta(seconds=1)))

    assert failed.message == "the program failed: it used more processor time than it may"


async def test_memory_is_limited() -> None:
    failed = await failure(python("bytearray(1 << 28)", memory=100 << 20))

    assert "MemoryError" in failed.message


async def test_file_size_is_limited(tmp_path: Path) -> None:
    code = "import sys; f = open(sys.argv[1], 'wb', 0); [f.write(bytes(600)) for _ in range(3)]"

    failed = await failure(python(code, str(tmp_path / "file"), max_file=1000))

    assert failed.word == "failed"
    assert (tmp_path / "file").stat().st_size == 1000


async def stop_call(
    backend: CommandBackend, note: Path, stop: Callable[["asyncio.Task[Any]"], object]
) -> "asyncio.Task[Any]":
    """Start a call, wait until the program wrote its note, and cancel the call."""
    call = asyncio.create_task(backend.run(invocation({"note": str(note)}, Spool(limit=1 << 20))))
    async with asyncio.timeout(20):
        while not note.exists() and not call.done():
            await asyncio.sleep(0.01)
        stop(call)
        await asyncio.wait([call])
    return call


STUCK = (
    "import os, signal, subprocess, sys, time\n"
    "{ignore}\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open(sys.argv[1] + '.part', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
    "os.rename(sys.argv[1] + '.part', sys.argv[1])\n"
    "{then}"
)


@pytest.mark.parametrize("ignore", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"], ids=["polite", "stubborn"])
async def test_cancelled_program_is_gone_with_its_children(tmp_path: Path, ignore: str) -> None:
    before, note = other_tasks(), tmp_path / "pids"
    backend = CommandBackend(python(STUCK.format(ignore=ignore, then="time.sleep(600)"), "{note}"), HOST)

    call = await stop_call(backend, note, lambda call: call.cancel())

    assert call.cancelled()
    assert all([await is_gone(int(pid)) for pid in note.read_text(encoding="ascii").split()])
    assert other_tasks() == before


async def test_timed_out_program_is_gone(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    code = STUCK.format(ignore="", then="time.sleep(600)")
    backend = CommandBackend(python(code, "{note}", timeout=timedelta(seconds=2)), HOST)

    call = await stop_call(backend, note, lambda call: None)

    error = call.exception()
    assert isinstance(error, BackendError)
    assert (error.word, error.message) == ("unavailable", "no result within 2 s")
    assert all([await is_gone(int(pid)) for pid in note.read_text(encoding="ascii").split()])


async def test_program_past_the_output_limit_is_gone(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    code = STUCK.format(ignore="", then="while True: os.write(1, bytes(65536))")

    call = await stop_call(CommandBackend(python(code, "{note}"), HOST), note, lambda call: None)

    assert isinstance(call.exception(), TooMuch)
    assert all([await is_gone(int(pid)) for pid in note.read_text(encoding="ascii").split()])


async def test_child_left_in_the_background_ends_with_the_call(tmp_path: Path) -> None:
    note = tmp_path / "pids"

    call = await stop_call(
        CommandBackend(python(STUCK.format(ignore="", then="print('done')"), "{note}"), HOST), note, lambda call: None
    )

    assert call.exception() is None
    assert all([await is_gone(int(pid)) for pid in note.read_text(encoding="ascii").split()])


@confined
@pytest.mark.parametrize("network", ["none", "host"])
async def test_program_does_not_outlive_a_gateway_that_was_killed(network: str) -> None:
    code = (
        "import asyncio, sys\n"
        "from gateway.backends.command.child_process import Confinement, start_child\n"
        "async def main():\n"
        "    argv = [sys.executable, '-c', 'import time; print(flush=True); time.sleep(600)']\n"
        "    confinement = Confinement(network=sys.argv[1], readable=('/',))\n"
        "    child = start_child(argv, confinement, confinement.grants(argv[0], None), environment={})\n"
        "    await child.stdout.read()\n"
        "    print(child.pid, flush=True)\n"
        "    await child.wait()\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code, network], stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        pid = int(gateway.stdout.readline())
        gateway.kill()

    assert await is_gone(pid)


async def test_closing_ends_what_runs(tmp_path: Path) -> None:
    note = tmp_path / "pids"
    backend = CommandBackend(python(STUCK.format(ignore="", then="time.sleep(600)"), "{note}"), HOST)
    closing: list[asyncio.Task[None]] = []

    call = await stop_call(backend, note, lambda call: closing.append(asyncio.create_task(backend.close())))
    await closing[0]

    assert isinstance(call.exception(), BackendError)
    assert all([await is_gone(int(pid)) for pid in note.read_text(encoding="ascii").split()])
