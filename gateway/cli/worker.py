"""One of several processes that serve: started by `gateway serve --workers`, never by hand."""

import asyncio
import os
import sys
from pathlib import Path

import typer

from gateway.cli.serving import serve_here
from gateway.runtime.affinity import Affinity
from gateway.runtime.settings import Settings
from gateway.runtime.stopping import Stopping
from gateway.runtime.workers import Order


def main() -> None:
    order = Order.of(sys.argv[1])
    order.keep_to_itself()
    key = order.key()
    settings = Settings.model_validate_json(order.settings)
    lines: list[str] = []
    try:
        serve_here(
            settings,
            order.sockets,
            say=lines.append,
            up=lambda: order.tell_up(lines),
            watch=lambda stopping: _watch(order.lifeline, stopping),
            goes_on=order.goes_on,
            worker=order.index,
            among=lambda app: Affinity(
                app, index=order.index, count=settings.workers, folder=Path(order.folder), key=key
            ),
        )
    except typer.Exit as refused:  # which was told already
        sys.exit(refused.exit_code)


def _watch(lifeline: int, stopping: Stopping) -> None:
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(lifeline)
        os.close(lifeline)
        stopping.ask()

    loop.add_reader(lifeline, ended)


if __name__ == "__main__":
    main()
