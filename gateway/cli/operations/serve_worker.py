"""The program of a worker process, which `gateway serve --workers` starts."""

import asyncio
import os
import sys
from pathlib import Path

import typer

from gateway.app import Settings, WorkerConfig, WorkerRouter
from gateway.cli.operations.serve import run_process
from gateway.server import ShutdownSignal


def main() -> None:
    config = WorkerConfig.of(sys.argv[1])
    config.close_on_exec()
    key = config.key()
    settings = Settings.model_validate_json(config.settings)
    lines: list[str] = []
    try:
        run_process(
            settings,
            config.sockets,
            say=lines.append,
            up=lambda: config.report_ready(lines),
            watch=lambda stopping: _stop_when_parent_ends(config.lifeline, stopping),
            goes_on=config.goes_on,
            worker=config.index,
            among=lambda app: WorkerRouter(
                app, index=config.index, count=settings.workers, folder=Path(config.folder), key=key
            ),
        )
    except typer.Exit as refused:  # the reason is printed already
        sys.exit(refused.exit_code)


def _stop_when_parent_ends(lifeline: int, stopping: ShutdownSignal) -> None:
    loop = asyncio.get_running_loop()

    def on_closed() -> None:
        loop.remove_reader(lifeline)
        os.close(lifeline)
        stopping.request()

    loop.add_reader(lifeline, on_closed)


if __name__ == "__main__":
    main()
