"""Collect the metrics of a gateway: its counters, current values, and the metrics of its other workers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.app.governance import Governance
from gateway.app.telemetry_setup import TelemetryPipeline
from gateway.backends import RemoteError, UpstreamConnection
from gateway.engine import CircuitState, Service, StageState
from gateway.errors import StoreUnavailable
from gateway.model import BackendError
from gateway.server import Receive, Scope, Send, bytes_response
from gateway.storage import ResultSpool
from gateway.telemetry import (
    CONTENT_TYPES,
    Family,
    GatewayMetrics,
    MetricAttributes,
    Point,
    Queue,
    Values,
    format_exposition,
    gauge_family,
    merge_families,
    names,
    negotiate_format,
    pack_families,
    unpack_families,
)

WORKER_METRICS_PATH: Final = "/.gateway/metrics"
"""Path of metrics between workers, over authenticated connections. No other listener serves it."""

Others = Callable[[str], Awaitable[Mapping[int, bytes]]]
"""Returns the responses of the other workers to a path, by index; one that does not answer is left out."""

Place = tuple[str | None, int | None, tuple[str | None, str | None, str | None]]
"""Host, port and transport of an upstream server."""

_STATES: Final[Mapping[CircuitState, int]] = {"closed": 0, "half-open": 1, "open": 2}
_log: Final = logging.getLogger(__name__)


class MetricsCollector:
    """Metrics of a process. `others` and `worker` are set if several processes serve."""

    def __init__(
        self,
        meters: GatewayMetrics,
        service: Service,
        *,
        shared: StageState,
        controlled: Governance,
        observing: TelemetryPipeline,
        spool: ResultSpool,
    ) -> None:
        self.meters = meters
        self._service = service
        self._shared = shared
        self._controlled = controlled
        self._observing = observing
        self._spool = spool
        self._revision = service.published.snapshot.revision
        service.on_change.add(self._on_published)
        self._places: dict[str, Place] = {}
        self.worker: int | None = None
        self.others: Others | None = None

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text, and the content type."""
        format = negotiate_format(accept)
        families = await self._read_all()
        return await asyncio.to_thread(format_exposition, families, format, about=self._about()), CONTENT_TYPES[format]

    async def read(self) -> list[Family]:
        """Return the metrics of this process and those of the shared store."""
        return merge_families([self._own(), await self._read_shared()])

    async def handle_internal(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to another worker, which adds the worker label."""
        await bytes_response(pack_families(self._own()))(scope, receive, send)

    async def _read_all(self) -> list[Family]:
        if self.others is None or self.worker is None:
            return await self.read()
        found = {self.worker: self._own()}
        for worker, content in (await self.others(WORKER_METRICS_PATH)).items():
            try:
                found[worker] = unpack_families(content)
            except ValueError:
                _log.warning("worker %d sent metrics in an unknown format", worker)
        return merge_families([*(_label_worker(*each) for each in sorted(found.items())), await self._read_shared()])

    def _own(self) -> list[Family]:
        telemetry = self._observing.telemetry
        return [
            *self.meters.read(),
            gauge_family(names.RUNNING, [((), len(self._service.running))]),
            gauge_family(names.CIRCUITS, self._circuits()),
            gauge_family(names.SPOOL_UNAVAILABLE, [((), int(self._spool.problem is not None))]),
            gauge_family(names.CONFIG_EXPIRES, self._expires()),
            gauge_family(names.DEFINITION_CHANGES, self._changes()),
            gauge_family(names.SPANS_PROCESSED, _count_processed(telemetry.spans if telemetry else None)),
            gauge_family(names.LOGS_PROCESSED, _count_processed(telemetry.logs if telemetry else None)),
        ]

    def observe_connections(self, connections: Iterable[UpstreamConnection]) -> None:
        """Count every request to the upstream servers."""
        for connection in connections:
            connection.metered = self._record_request

    def _record_request(
        self,
        connection: UpstreamConnection,
        method: str,
        params: Mapping[str, Any],
        seconds: float,
        outcome: BackendError | Mapping[str, Any],
    ) -> None:
        error: str | None = None
        if isinstance(outcome, BackendError):
            error = outcome.word
        elif outcome.get("isError") is True:
            error = names.TOOL_ERROR
        known = connection.introduction
        where = self._places.get(connection.name)
        if where is None:
            where = self._places[connection.name] = _locate(connection)
        host, port, network = where
        self.meters.record_upstream_request(
            method,
            seconds=seconds,
            tool=str(params.get("name")) if method == names.TOOLS_CALL else None,
            error=error,
            code=outcome.number if isinstance(outcome, RemoteError) else None,
            version=None if known is None else known.version,
            host=host,
            port=port,
            network=network,
        )

    def _on_published(self) -> None:
        """Count a reload if a publication has another revision."""
        revision = self._service.published.snapshot.revision
        if revision != self._revision:
            self._revision = revision
            self.meters.count_reload("published")

    def _changes(self) -> Iterator[tuple[Values, float]]:
        definition_guard = self._service.published.definition_guard
        for upstream, count in (definition_guard.changes if definition_guard is not None else {}).items():
            yield (upstream,), count

    def _expires(self) -> Iterator[tuple[Values, float]]:
        """Yield the expiry of the configuration, if it expires."""
        until = self._controlled.validity.until
        if until is not None:
            yield (), until.timestamp()

    def _circuits(self) -> Iterator[tuple[Values, float]]:
        for key, state in self._shared.circuit_states().items():
            kind, _, name = key.partition(":")
            yield ((None, name) if kind == "upstream" else (name, None)), _STATES[state]

    async def _read_shared(self) -> list[Family]:
        """Return metrics of the shared store; none if it cannot be read, which other metrics report."""
        rules = self._service.published.snapshot.gates.values()
        none = {rule.name: 0 for rule in rules if rule.approval is not None}
        try:
            pending = {**none, **await self._controlled.approvals.count_pending(datetime.now(UTC))}
        except StoreUnavailable:
            return []
        return [gauge_family(names.APPROVALS_PENDING, [((rule,), count) for rule, count in pending.items()])]

    def _about(self) -> MetricAttributes:
        snapshot = self._service.published.snapshot
        return (
            ("service.name", "agent-gateway"),
            ("service.version", _version()),
            (names.CONFIG_REVISION, snapshot.short_revision),
        )


def _locate(connection: UpstreamConnection) -> Place:
    parts = urlsplit(str(getattr(connection, "address", "")))
    if parts.scheme not in ("http", "https"):
        return None, None, ("pipe", None, None)
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), ("tcp", "http", None)


def _label_worker(worker: int, families: Sequence[Family]) -> list[Family]:
    """Label the metrics with their worker, so that counters of a replaced worker restart visibly."""
    label = ("worker", str(worker))
    return [
        Family(each.metric, [Point((*point.attributes, label), point.value) for point in each.points])
        for each in families
    ]


def _count_processed(queue: Queue | None) -> Iterator[tuple[Values, float]]:
    """Yield the number of exported items, and of dropped ones by reason."""
    if queue is not None:
        dropped = dict(queue.dropped)
        yield (None,), queue.taken - sum(dropped.values())
        for reason, count in dropped.items():
            yield (reason,), count


def _version() -> str:
    try:
        return version("agent-gateway")
    except PackageNotFoundError:
        return "0"
