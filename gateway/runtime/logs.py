"""Where log records of this process go: to standard error, as lines, while it serves."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gateway.runtime.settings import Settings
from gateway.telemetry.log_lines import JsonLog, TextLog

_CHATTY: Final = ("uvicorn", "asyncio", "aiohttp", "alembic", "sqlalchemy")
"""Libraries whose everyday news is nobody's business."""


class _Output(logging.Handler):
    """Standard error as it is at the moment: it may be replaced while a gateway serves."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:  # there is nobody left to be told
            return


@contextmanager
def logs_as_lines(settings: Settings) -> Iterator[None]:
    """While this lasts, everything that is logged is written as the settings say; afterwards as before."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    handler = _Output()
    is_json = settings.log_format == "json" or (settings.log_format is None and not _is_terminal())
    handler.setFormatter(JsonLog() if is_json else TextLog())
    level = settings.log_level.upper()
    quiet = [logging.getLogger(name) for name in _CHATTY] if level != "DEBUG" else []
    levels = [each.level for each in quiet]
    root.handlers[:] = [handler]
    root.setLevel(level)
    for each in quiet:
        each.setLevel(max(logging.WARNING, root.level))
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        for each, was in zip(quiet, levels, strict=True):
            each.setLevel(was)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False
