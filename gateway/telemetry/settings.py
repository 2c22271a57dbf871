"""What telemetry is told to do: as plain data, whoever wrote it down, a document or the environment."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from gateway.errors import ProgramError

Signal = Literal["traces", "logs", "metrics"]
Kept = Literal["error", "denied", "held"]
ArgumentCapture = Literal["none", "keys", "values"]
ResultCapture = Literal["none", "values"]

ALWAYS: Final[frozenset[Kept]] = frozenset({"error", "denied", "held"})
ARGUMENT_ORDER: Final[tuple[ArgumentCapture, ...]] = ("none", "keys", "values")
RESULT_ORDER: Final[tuple[ResultCapture, ...]] = ("none", "values")


LONGEST_VALUE: Final = 1024
SOON: Final = 0.05
"""Seconds that log records wait: those that say that a call has begun are of use while it runs."""


class TelemetryUnusable(ProgramError):
    """Telemetry is asked for in a way that cannot work here. Nothing starts, so that nobody misses it later."""

    code = "E_TELEMETRY_UNUSABLE"
    default_message = "telemetry cannot be set up"


def no_headers() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class Otlp:
    """A collector. `headers` are asked for with every request: what is secret in them may be rotated."""

    protocol: Literal["http", "grpc"]
    endpoint: str
    headers: Callable[[], Mapping[str, str]] = field(default=no_headers, repr=False)
    timeout: float = 10.0
    compression: Literal["none", "gzip"] = "none"
    certificate: Path | None = None
    client_certificate: Path | None = None
    client_key: Path | None = None


@dataclass(frozen=True, slots=True)
class Lines:
    """JSON lines: in a file, or without one on the standard error output."""

    path: Path | None = None


Exporter = Otlp | Lines


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which traces are kept. What ended in one of `always` is, whatever the ratio or the caller says."""

    ratio: float = 1.0
    always: frozenset[Kept] = ALWAYS
    follows_caller: bool = True
    """Whether the sampling of a caller whose trace is joined counts."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How many wait to be sent, how many go at once, and how long the first of them waits, in seconds."""

    queue: int = 16_384
    batch: int = 512
    delay: float = 1.0


@dataclass(frozen=True, slots=True)
class Capture:
    arguments: ArgumentCapture = "keys"
    results: ResultCapture = "none"

    def tightened(self, other: "Capture") -> "Capture":
        """The stricter of both, each in its own right."""
        return Capture(
            min(self.arguments, other.arguments, key=ARGUMENT_ORDER.index),
            min(self.results, other.results, key=RESULT_ORDER.index),
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """`resource` says who sends; `baggage` are keys that are taken in and passed on."""

    resource: Mapping[str, str]
    traces: Exporter | None = None
    logs: Exporter | None = None
    metrics: Exporter | None = None
    metrics_every: float = 60.0
    """Seconds."""
    log_lines: bool = False
    """Whether what the gateway logs is sent, too."""
    start_records: bool = True
    sampling: Sampling = Sampling()
    capture: Capture = Capture()
    baggage: frozenset[str] = frozenset()
    longest_value: int = LONGEST_VALUE
    spans: Batching = Batching()
    records: Batching = Batching(delay=SOON)

    @property
    def is_off(self) -> bool:
        return self.traces is None and self.logs is None and self.metrics is None
