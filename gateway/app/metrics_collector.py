"""Collect the metrics of a gateway: its counters, current values, and the metrics of its other workers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.app.governance import Governance
from gateway.app.telemetry_setup import TelemetryPipeline, find_version
from gateway.backends import RemoteError, UpstreamConnection, Upstreams
from gateway.engine import CircuitState, Service, StageState
from gateway.errors import StoreUnavailable
from gateway.model import BackendError
from gateway.server import AdmissionControl, Receive, Scope, Send, bytes_response
from gateway.storage import ResultSpool
from gateway.telemetry import (
    CONTENT_TYPES,
    Exposition,
    GatewayMetrics,
    LogPipeline,
    MeterPipeline,
    SpanExport,
    Values,
    names,
    negotiate_format,
    observe_process,
    parse_metrics,
    to_message,
)

WORKER_METRICS_PATH: Final = "/.gateway/metrics"
"""Path of metrics between workers, over authenticated connections. No other listener serves it."""

Others = Callable[[str], Awaitable[Mapping[int, bytes]]]
"""Returns the responses of the other workers to a path, by index; one that does not answer is left out."""

Place = tuple[str | None, int | None, tuple[str | None, str | None, str | None]]
"""Host, port and transport of an upstream server."""

_UPSTREAM_STATES: Final[Mapping[str, int]] = {"up": 0, "not asked": 1, "down": 2, "left out": 3}
_STATES: Final[Mapping[CircuitState, int]] = {"closed": 0, "half-open": 1, "open": 2}
_SOON: Final = 2.0
_log: Final = logging.getLogger(__name__)


class MetricsCollector:
    """Metrics of a process. `others` and `worker` are set if several processes serve.

    Readers collect in threads of their own, so what is read here may change meanwhile.
    """

    def __init__(
        self,
        pipeline: MeterPipeline,
        meters: GatewayMetrics,
        service: Service,
        *,
        shared: StageState,
        controlled: Governance,
        observing: TelemetryPipeline,
        spool: ResultSpool,
    ) -> None:
        """Must run in the event loop."""
        self.meters = meters
        self._pipeline = pipeline
        self._service = service
        self._shared = shared
        self._controlled = controlled
        self._observing = observing
        self._spool = spool
        self._loop = asyncio.get_running_loop()
        self._pending: list[tuple[Values, float]] = []
        self._revision = service.published.snapshot.revision
        service.on_change.add(self._on_published)
        self._upstreams: Upstreams | None = None
        self._places: dict[str, Place] = {}
        self.worker: int | None = None
        self.others: Others | None = None
        self._observe_all()

    def _observe_all(self) -> None:
        observe = self.meters.observe
        observe(names.RUNNING, lambda: [((), len(self._service.running))])
        observe(names.CIRCUITS, self._circuits)
        observe(names.UPSTREAM_STATE, self._read_upstreams)
        observe(names.SPOOL_UNAVAILABLE, lambda: [((), int(self._spool.problem is not None))])
        observe(names.CONFIG_EXPIRES, self._expires)
        observe(names.DEFINITION_CHANGES, self._changes)
        observe(names.APPROVALS_PENDING, self._read_pending)
        observe(names.SPANS_PROCESSED, lambda: _count_processed(self._observing.spans))
        observe(names.LOGS_PROCESSED, lambda: _count_processed(self._observing.logs))
        observe_process(self.meters)
        self._start_series()

    def _start_series(self) -> None:
        snapshot = self._service.published.snapshot
        held = [rule.name for rule in snapshot.gates.values() if rule.approval is not None]
        self.meters.start_series(snapshot.catalogues, held)

    def serve(self, admission: AdmissionControl) -> None:
        """Collect for `render` from now on."""
        self._pipeline.serve()
        self.meters.observe(names.ADMISSION_QUEUE, lambda: [((), admission.queued)])
        self._start_series()

    async def render(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics as text, and the content type."""
        format = negotiate_format(accept)
        exposition = Exposition(format)
        others = {} if self.others is None else await self.others(WORKER_METRICS_PATH)
        own = await asyncio.to_thread(self._collect)
        content = await asyncio.to_thread(self._format, exposition, own, others)
        return content, CONTENT_TYPES[format]

    async def handle_internal(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to another worker, which adds the worker label."""
        own = await asyncio.to_thread(self._collect)
        await bytes_response(own.SerializeToString())(scope, receive, send)

    def _collect(self) -> Any:
        return to_message(self._pipeline.collect())

    def _format(self, exposition: Exposition, own: Any, others: Mapping[int, bytes]) -> bytes:
        """Label the metrics with their worker, so that counters of a replaced worker restart visibly."""
        if self.worker is None:
            exposition.add(own)
            return exposition.text(self._about())
        found = {self.worker: own}
        for worker, content in others.items():
            try:
                found[worker] = parse_metrics(content)
            except ValueError:
                _log.warning("worker %d sent metrics in an unknown format", worker)
        for worker, each in sorted(found.items()):
            exposition.add(each, (("worker", str(worker)),))
        return exposition.text(self._about())

    def observe_connections(self, upstreams: Upstreams) -> None:
        """Count every request to the upstream servers, and show their states."""
        self._upstreams = upstreams
        for connection in upstreams:
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
        self._start_series()
        revision = self._service.published.snapshot.revision
        if revision != self._revision:
            self._revision = revision
            self.meters.count_reload("published")

    def _changes(self) -> Iterator[tuple[Values, float]]:
        definition_guard = self._service.published.definition_guard
        none = {each.name: 0 for each in self._upstreams or ()}
        for upstream, count in (none | dict(definition_guard.changes if definition_guard is not None else {})).items():
            yield (upstream,), count

    def _read_upstreams(self) -> Iterator[tuple[Values, float]]:
        for each in () if self._upstreams is None else self._upstreams.status():
            yield (each["name"],), _UPSTREAM_STATES[each["state"]]

    def _expires(self) -> Iterator[tuple[Values, float]]:
        """Yield the expiry of the configuration, if it expires."""
        until = self._controlled.validity.until
        if until is not None:
            yield (), until.timestamp()

    def _circuits(self) -> Iterator[tuple[Values, float]]:
        for key, state in self._shared.circuit_states().items():
            kind, _, name = key.partition(":")
            yield ((None, name) if kind == "upstream" else (name, None)), _STATES[state]

    def _read_pending(self) -> list[tuple[Values, float]]:
        """Return how many approvals wait; none if the store cannot be read, which other metrics report."""
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is self._loop:  # to wait for the store would block it
                return self._pending
        rules = self._service.published.snapshot.gates.values()
        reading = asyncio.run_coroutine_threadsafe(
            self._controlled.approvals.count_pending(datetime.now(UTC)), self._loop
        )
        try:
            found = {rule.name: 0 for rule in rules if rule.approval is not None} | dict(reading.result(_SOON))
        except (StoreUnavailable, TimeoutError):
            reading.cancel()
            found = {}
        self._pending = [((rule,), count) for rule, count in found.items()]
        return self._pending

    def _about(self) -> tuple[tuple[str, str], ...]:
        snapshot = self._service.published.snapshot
        return (
            ("service.name", "agent-gateway"),
            ("service.version", find_version()),
            (names.CONFIG_REVISION, snapshot.short_revision),
        )


def _locate(connection: UpstreamConnection) -> Place:
    parts = urlsplit(str(getattr(connection, "address", "")))
    if parts.scheme not in ("http", "https"):
        return None, None, ("pipe", None, None)
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), ("tcp", "http", None)


def _count_processed(queue: SpanExport | LogPipeline | None) -> Iterator[tuple[Values, float]]:
    """Yield the number of exported items, and of dropped ones by reason."""
    if queue is not None:
        dropped = dict(queue.dropped)
        yield (None,), queue.taken - sum(dropped.values())
        for reason, count in (dict.fromkeys(names.DROP_REASONS, 0) | dropped).items():
            yield (reason,), count
