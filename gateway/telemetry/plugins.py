"""Parts of telemetry from other packages, by their entry points."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from gateway.telemetry.settings import InvalidTelemetry, Signal


def create_exporter(signal: Signal, name: str, kinds: tuple[type[Any], ...]) -> Any:
    """Return a new exporter of one of the kinds. Raises `InvalidTelemetry` if there is none of that name."""
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    for word, found in load_all(f"opentelemetry_{signal}_exporter", name):
        made = found() if callable(found) else found
        if isinstance(made, kinds):
            return made
        raise InvalidTelemetry(f"the environment variable {variable} cannot be used", help=f"{word} is no exporter")
    raise InvalidTelemetry(
        f"the environment variable {variable} names something that is not installed", help="install its package"
    )


def load_all(group: str, name: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yield what the entry points of the group are, with their words for messages."""
    for entry in entry_points(group=group) if name is None else entry_points(group=group, name=name):
        try:
            yield entry.value, entry.load()
        except Exception as error:
            help = f"check the package with the entry point {entry.name}"
            raise InvalidTelemetry(f"{entry.value} cannot be loaded", help=help) from error
