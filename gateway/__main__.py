"""The `gateway` command. `serve` can be stopped from its first moment on, before anything else is imported."""

import os
import select
import signal
import sys


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
    from gateway.cli import main as command

    command()


def _end(number: int, frame: object) -> None:
    """Stopped as asked: nothing is open yet, or everything is closed again.

    Not by an exception, which code that happens to run may swallow: that of modules being imported does.
    """
    try:
        if select.select((), (2,), (), 0)[1]:
            os.write(2, b"note: stopped\n")
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
