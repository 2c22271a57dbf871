"""Functions for a Python backend, some of them badly behaved."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gateway import Media
from gateway.errors import ToolError
from gateway.model.media import InMemoryMediaReader


def greeting(name: str, times: int = 1) -> str:
    return f"hello {name} " * times


async def greeting_later(name: str) -> str:
    return f"later {name}"


def whole_call(args: dict[str, Any], ctx: Any, meta: Any) -> str:
    return f"{args['name']} {ctx.turn_id != ''} {meta.get('team')}"


def anything(**given: Any) -> dict[str, Any]:
    return given


def given_back(value: Any) -> Any:
    return value


def made(kind: str) -> Any:
    made: dict[str, Any] = {
        "bytes": b"\x00\xff",
        "bytearray": bytearray(b"ab"),
        "set": {1},
        "object": object(),
        "nothing": None,
        "nan": float("nan"),
        "number keys": {1: "a"},
        "media": picture("one"),
        "media list": [picture("one"), picture("two")],
        "surrogate": "\ud800",
    }
    return made[kind]


def picture(name: str) -> Media:
    return Media.tool_generated(
        "image", mime_type="image/png", filename=f"{name}.png", reader=InMemoryMediaReader(name.encode())
    )


def refused(status: int) -> str:
    raise ToolError("no\nsuch thing", help="look elsewhere", status=status)


def broken(secret: str) -> str:
    raise ValueError(f"cannot log in with {secret}")


def leaving() -> str:
    sys.exit(3)


def stopped() -> str:
    raise StopIteration


def environment() -> dict[str, str]:
    return dict(os.environ)


def parents_environment() -> str:
    return Path(f"/proc/{os.getppid()}/environ").read_text(encoding="utf-8")


def where() -> int:
    return os.getpid()


def large(size: int) -> bytes:
    return bytes(size)


def dying() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "unreachable"


def chatty() -> str:
    print("to stdout" * 10_000)
    print("to stderr" * 100_000, file=sys.stderr)
    return "done"


def stuck(note: str) -> str:
    """Record its own process id and that of a child, then block."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    part = Path(f"{note}.part")
    part.write_text(f"{os.getpid()} {child.pid}", encoding="ascii")
    part.rename(note)
    time.sleep(600)
    return "unreachable"


def forged_frame() -> str:
    """Try to write to the gateway's channel instead of returning."""
    for handle in range(3, 32):
        try:
            os.write(handle, (1 << 60).to_bytes(8, "big"))
        except OSError:
            continue
    return "sent"
