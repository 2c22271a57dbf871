"""Drops privileges, then becomes the program: `python -I -S launcher.py SETTINGS PROGRAM …`.

It is a separate script because code between fork and exec is unsafe in a process with threads. It imports little,
because its start is most of the cost of starting a program; its settings are marshalled by the same interpreter. If a
limit in the settings cannot be enforced, the program does not start.

    what                      how                                    what it does not cover
    environment               the declared names only                -
    network: none             a network namespace, or, where that    Unix sockets; in the file system only, if it is
                              is forbidden, a filter of sockets      a namespace
    readable folders          Landlock, kernel 6.2 or newer          names, sizes and times of files; Unix sockets
    writable folders          Landlock, kernel 6.2 or newer          modes, owners and times of files
    folders replaced by links real paths, opened without following   a program with writable: [/], after the
                              any link                               gateway restarts
    other processes           Landlock: memory, environment          signals, before kernel 6.12
    their limits, priority,   a filter of calls that name another    machines other than x86_64, aarch64 and riscv64,
    scheduling                process, or any thread by its number   kernels without seccomp
    cpu, memory, file size    rlimits, per process                   the sum over all processes it starts
    privileges                no capabilities, no_new_privs          root without CAP_SETPCAP keeps its capabilities
    end of the gateway        killed with it                         processes that the program started
"""

import ctypes
import errno
import marshal
import os
import resource
import stat
import sys

FAILED = 125
NEEDED_LANDLOCK = 3  # the first version that restricts truncation

_SIGKILL, _SIGNALS = 9, range(1, 32)  # importing `signal` takes longer than all other imports
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 1, 24, 38, 47
_AMBIENT_CLEAR_ALL = 4
_CAPABILITIES = range(64)
_PR_SET_SECCOMP, _FILTER_MODE = 22, 2
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_READ_FILE, _READ_FOLDER = 1 | 1 << 2, 1 << 3  # execute and read; list
_READS = _READ_FILE | _READ_FOLDER
_KNOWS_SCOPES, _SCOPE_SIGNAL = 6, 1 << 1
_KNOWS_REFER, _REFER = 2, 1 << 13
_WRITES = _WRITE_FILE | _TRUNCATE | _REFER | sum(1 << bit for bit in range(4, 13))  # remove and create anything
_ALWAYS_WRITABLE = "/dev/null"

_WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC  # opens the link itself, or fails

_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198), "riscv64": (0xC00000F3, 198)}
"""Machine → (audit architecture, number of the `socket` call)."""
_IO_URING_SETUP = 425  # io_uring can open sockets
_FOREIGN_CALLS = 0x40000000  # a second numbering of the same calls on x86 (x32)
_CALLS_ON_PROCESS = {
    0xC000003E: (302, 142, 144, 203, 314),
    0x40000003: (340, 154, 156, 241, 351),
    0xC00000B7: (261, 118, 119, 122, 274),
    0x40000028: (369, 154, 156, 241, 380),
    0xC00000F3: (261, 118, 119, 122, 274),
    0x400000F3: (261, 118, 119, 122, 274),
}
"""`prlimit64`, `sched_setparam`, `sched_setscheduler`, `sched_setaffinity`, `sched_setattr`: argument 1 is a PID."""
_CALLS_ON_GROUP = {
    0xC000003E: ((141, 2), (251, 3)),
    0x40000003: ((97, 2), (289, 3)),
    0xC00000B7: ((140, 2), (30, 3)),
    0x40000028: ((97, 2), (314, 3)),
    0xC00000F3: ((140, 2), (30, 3)),
    0x400000F3: ((140, 2), (30, 3)),
}
"""Numbers of `setpriority` and `ioprio_set`, each with the argument that selects all processes of a user."""
_ARCHITECTURES_32 = {0xC000003E: 0x40000003, 0xC00000B7: 0x40000028, 0xC00000F3: 0x400000F3}
"""The architecture of 32-bit programs that a machine can run."""
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN, _AND = 0x20, 0x15, 0x35, 0x06, 0x54
_FIRST_ARGUMENT, _SECOND_ARGUMENT = 16, 24  # offsets of their lower halves
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EACCES, 0x80000000
_NOT_PERMITTED = 0x00050000 | errno.EPERM


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("value", ctypes.c_uint32))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def main() -> None:
    # written by `settings_argument` in the gateway for this process
    settings = marshal.loads(bytes.fromhex(sys.argv[1]))  # noqa: S302
    try:
        if settings.get("probe"):
            print(landlock_version(), int(_can_leave_network()))
            return
        names = set(settings["environment"])
        # Python may have added a locale variable
        environment = {name: value for name, value in os.environb.items() if os.fsdecode(name) in names}
        for ignored in _SIGNALS:  # exec would pass on signals that Python or the gateway's parent process ignores
            _libc().signal(ignored, None)
        _confine(settings)
        os.execve(sys.argv[2], sys.argv[2:], environment)  # noqa: S606 - starting it without a shell is the point
    except BaseException as error:
        # only the gateway knows the mark, so no program can imitate a message of the launcher
        print(f"{settings.get('mark', '')}{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(FAILED)


def settings_argument(settings: "dict[str, object]") -> str:
    return marshal.dumps(settings).hex()


def landlock_version() -> int:
    version: int = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(version, 0)


def _confine(settings: dict[str, object]) -> None:
    if sys.platform == "linux":
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _protect_other_processes()
    folder = settings["folder"]
    if isinstance(folder, str):
        _enter_folder(folder)
    if settings["network"] != "host":
        _leave_network(settings["network"])
    _restrict(settings["readable"], settings["files"], settings["writable"])
    if sys.platform == "linux":
        _drop_capabilities()
        _prctl(_PR_SET_PDEATHSIG, _SIGKILL)  # late: a change of credentials undoes it
    limits = settings["limits"]
    if isinstance(limits, dict):
        for name, value in limits.items():  # last: the launcher itself needs some memory
            _set_limit(getattr(resource, name), value)


def _drop_capabilities() -> None:
    """Drop all capabilities at the next exec. Errors are ignored: most numbers are unused, most users hold none."""
    libc = _libc()
    libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_AMBIENT_CLEAR_ALL), 0, 0, 0)
    for number in _CAPABILITIES:
        libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)


def _set_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    # at the hard CPU limit the kernel kills without a signal that can be handled; one second earlier it sends SIGXCPU
    soft = max(1, value - 1) if kind == resource.RLIMIT_CPU else value
    resource.setrlimit(kind, (soft, value))


def _leave_network(how: object) -> None:
    """Cut off the network: `none` by namespace or else by filter, `filtered` by filter only."""
    try:
        if how == "none":
            return _enter_namespace()
    except OSError:
        pass  # most containers forbid it
    _forbid_sockets()


def _forbid_sockets() -> None:
    """Refuse `socket` calls for families other than Unix, in the program and in all processes it starts."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES or sys.maxsize < 1 << 32:
        raise OSError(errno.ENOSYS, f"no filter of sockets is known for {machine}")
    architecture, socket_call = _ARCHITECTURES[machine]
    program = [
        (_LOAD, 0, 0, 4),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
        (_IF_AT_LEAST, 5, 0, _FOREIGN_CALLS),
        (_IF_EQUAL, 4, 0, _IO_URING_SETUP),
        (_IF_EQUAL, 0, 2, socket_call),
        (_LOAD, 0, 0, 16),  # the first argument: the family
        (_IF_EQUAL, 0, 1, 1),  # AF_UNIX
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _install_filter(program, "forbidding sockets")


def _protect_other_processes() -> None:
    """Refuse calls that change limits, priority or scheduling of any process but the caller (number 0)."""
    architecture, _ = _ARCHITECTURES.get(os.uname().machine, (0, 0))
    if not architecture:
        return
    narrow, wide = _build_refusals(_ARCHITECTURES_32[architecture]), _build_refusals(architecture)
    program = [
        (_LOAD, 0, 0, 4),
        (_IF_EQUAL, 2 + len(narrow), 0, architecture),
        (_IF_EQUAL, 1, 0, _ARCHITECTURES_32[architecture]),
        (_RETURN, 0, 0, _KILL),
        *narrow,
        *wide,
    ]
    try:
        _install_filter(program, "sparing other processes")
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):  # this kernel has no filters
            raise


def _build_refusals(architecture: int) -> list[tuple[int, int, int, int]]:
    steps = [(_LOAD, 0, 0, 0), (_AND, 0, 0, ~_FOREIGN_CALLS & 0xFFFFFFFF)]
    mine = [(_IF_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _NOT_PERMITTED)]
    for call in _CALLS_ON_PROCESS[architecture]:
        steps += [(_IF_EQUAL, 0, 4, call), (_LOAD, 0, 0, _FIRST_ARGUMENT), *mine]
    for call, of_user in _CALLS_ON_GROUP[architecture]:
        steps += [(_IF_EQUAL, 0, 6, call), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_IF_EQUAL, 3, 0, of_user)]
        steps += [(_LOAD, 0, 0, _SECOND_ARGUMENT), *mine]
    return [*steps, (_RETURN, 0, 0, _ALLOW)]


def _install_filter(program: "list[tuple[int, int, int, int]]", what: str) -> None:
    instructions = (_Instruction * len(program))(*(_Instruction(*step) for step in program))
    call = (ctypes.c_ulong(_FILTER_MODE), ctypes.byref(_Filter(len(program), instructions)), 0, 0)
    _check_result(_libc().prctl(_PR_SET_SECCOMP, *call), what)


def _enter_namespace() -> None:
    """Enter a new network namespace, and a user namespace, so that even root cannot return to the host's network."""
    user, group = os.geteuid(), os.getegid()
    _check_result(_libc().unshare(_CLONE_NEWUSER | _CLONE_NEWNET), "leaving the network")
    for name, content in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(content)


def _can_leave_network() -> bool:
    try:
        _leave_network("none")
    except (OSError, AttributeError):
        return False
    return True


def _restrict(readable: object, files: object, writable: object) -> None:
    """Enter a Landlock ruleset. Each argument lists the allowed paths, `None` allows all. `files` are readable.

    Programs that may use everything are restricted as well: this blocks access to the memory and the environment of
    other processes. A restricted program may move files between folders only if the ruleset allows it.
    """
    handled = (_READS if isinstance(readable, list) else 0) | (_WRITES if isinstance(writable, list) else _REFER)
    if handled == _REFER and (sys.platform != "linux" or landlock_version() < _KNOWS_REFER):
        return
    libc = _libc()
    scopes = landlock_version() >= _KNOWS_SCOPES
    ruleset = _Ruleset(handled, 0, _SCOPE_SIGNAL if scopes else 0)
    size = ctypes.c_size_t(ctypes.sizeof(ruleset) if scopes else _Ruleset.network.offset)
    rules = _check_result(
        libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, ctypes.c_uint32(0)), "creating a Landlock ruleset"
    )
    if isinstance(writable, list):
        _allow(rules, _ALWAYS_WRITABLE, is_folder=False, access=_WRITE_FILE)
        for path in writable:
            _allow(rules, path, is_folder=True, access=handled & (_WRITES | _READS))
    else:
        _allow(rules, "/", is_folder=True, access=_REFER)
    if isinstance(readable, list) and isinstance(files, list):
        for path in readable:
            _allow(rules, path, is_folder=True, access=_READS)
        for path in files:
            _allow(rules, path, is_folder=False, access=_READ_FILE)
    _check_result(libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0)), "entering a Landlock ruleset")
    os.close(rules)


def _allow(rules: int, path: str, *, is_folder: bool, access: int) -> None:
    handle = _open_path(path, is_folder=is_folder)
    try:
        rule = _PathBeneath(access, handle)
        call = (ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
        _check_result(_libc().syscall(_ADD_RULE, *call), f"allowing the use of {path}")
    finally:
        os.close(handle)


def _enter_folder(folder: str) -> None:
    handle = _open_path(folder, is_folder=True)
    try:
        os.fchdir(handle)
    finally:
        os.close(handle)


def _open_path(path: str, *, is_folder: bool) -> int:
    """Return a handle of a real path. Raise for a link in it: it was created after the path was resolved."""
    handle = os.open("/", _WALK)
    try:
        for name in filter(None, path.split("/")):
            above, handle = handle, os.open(name, _WALK, dir_fd=handle)
            os.close(above)
            mode = os.fstat(handle).st_mode
            if stat.S_ISLNK(mode):
                raise OSError(errno.ELOOP, f"{path} has become a link, or passes through one; restore the folder")
        if stat.S_ISDIR(os.fstat(handle).st_mode) != is_folder:
            raise OSError(errno.ENOTDIR, f"{path} is {'no longer a folder' if is_folder else 'a folder now'}")
    except BaseException as error:
        os.close(handle)
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(error.errno, f"{path} does not exist any more") from error
        raise
    return handle


def _prctl(option: int, value: int) -> None:
    _check_result(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0), f"prctl {option}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check_result(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what} failed: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main()
