"""The `gateway` command. `serve` handles SIGTERM and SIGINT before it imports anything else."""

import os
import select
import signal
import sys


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _end)
    from gateway.cli.main import main as command

    command()


def _end(number: int, frame: object) -> None:
    """Exit with status 0: nothing is open yet, or everything is closed again.

    An exception would not do: the code that it interrupts, such as a module being imported, may swallow it.
    """
    try:
        if select.select((), (2,), (), 0)[1]:
            os.write(2, b"note: stopped\n")
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
