"""Metrics as OTLP, with OpenTelemetry's message classes: it runs once a minute in the background."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from time import time_ns
from typing import TYPE_CHECKING, Final

from gateway.telemetry import names
from gateway.telemetry.export.signal_exporter import FLUSH_SECONDS, ExportFailed, Transport, suppress_instrumentation
from gateway.telemetry.metric_instruments import Distribution, Exemplar, Family, Point

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.metrics.v1 import metrics_pb2


def encode_metrics(
    families: Sequence[Family], resource: Mapping[str, str], *, since: int, at: int, version: str
) -> bytes:
    """Return a whole request. Sums are cumulative: a request that a collector misses is included in the next one."""
    from opentelemetry.proto.metrics.v1 import metrics_pb2

    data = metrics_pb2.MetricsData()
    told = data.resource_metrics.add(schema_url=names.SCHEMA_URL)
    told.resource.attributes.extend(_attributes(tuple((key, str(value)) for key, value in resource.items())))
    scoped = told.scope_metrics.add(schema_url=names.SCHEMA_URL)
    scoped.scope.name, scoped.scope.version = names.SCOPE, version
    for family in families:
        if family.points:
            _add(scoped.metrics.add(), family, since=since, at=at)
    encoded: bytes = data.SerializeToString()
    return encoded


def _add(told: "metrics_pb2.Metric", family: Family, *, since: int, at: int) -> None:
    from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE as CUMULATIVE

    metric = family.metric
    told.name, told.unit, told.description = metric.name, metric.unit, metric.meaning
    if metric.instrument == "histogram":
        told.histogram.aggregation_temporality = CUMULATIVE
        for point in family.points:
            if isinstance(point.value, Distribution):
                _add_distribution(told.histogram.data_points.add(), metric.buckets, point, point.value, since, at)
        return
    if metric.instrument == "gauge":
        points = told.gauge.data_points
    else:
        told.sum.aggregation_temporality = CUMULATIVE
        told.sum.is_monotonic = metric.instrument == "counter"
        points = told.sum.data_points
    for point in family.points:
        if not isinstance(point.value, Distribution):
            each = points.add(start_time_unix_nano=since, time_unix_nano=at)
            each.attributes.extend(_attributes(point.attributes))
            if point.value == int(point.value):
                each.as_int = int(point.value)
            else:
                each.as_double = point.value


def _add_distribution(
    told: "metrics_pb2.HistogramDataPoint",
    bounds: Sequence[float],
    point: Point,
    found: Distribution,
    since: int,
    at: int,
) -> None:
    told.attributes.extend(_attributes(point.attributes))
    told.start_time_unix_nano, told.time_unix_nano = since, at
    told.count, told.sum = found.count, found.sum
    told.bucket_counts.extend(found.counts)
    told.explicit_bounds.extend(bounds)
    for example in (found.exemplars or {}).values():
        _add_example(told.exemplars.add(), example)


def _add_example(told: "metrics_pb2.Exemplar", found: Exemplar) -> None:
    told.time_unix_nano, told.as_double = found.at, found.value
    told.trace_id, told.span_id = bytes.fromhex(found.trace_id), bytes.fromhex(found.span_id)


def _attributes(pairs: Sequence[tuple[str, str]]) -> "list[KeyValue]":
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in pairs]


_log: Final = logging.getLogger(__name__)


class MetricExporter:
    """Sends what `read` returns every `every` seconds."""

    def __init__(
        self,
        read: Callable[[], Awaitable[list[Family]]],
        transport: Transport,
        *,
        resource: Mapping[str, str],
        version: str,
        every: float,
    ) -> None:
        self._read = read
        self._transport = transport
        self._resource = resource
        self._version = version
        self._every = every
        self._since = time_ns()
        self._closing = asyncio.Event()
        self._was_sent = True
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Send the last sums, for at most `FLUSH_SECONDS`."""
        self._closing.set()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=FLUSH_SECONDS)
            for task in late:
                task.cancel()
                await asyncio.wait({task})
        await self._transport.close()

    async def _run(self) -> None:
        suppress_instrumentation()
        while not self._closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._every):
                    await self._closing.wait()
            try:
                await self._send()
            except Exception:  # a bug must not end the export
                _log.exception("metrics could not be sent")

    async def _send(self) -> None:
        families = await self._read()
        payload = await asyncio.to_thread(
            encode_metrics, families, self._resource, since=self._since, at=time_ns(), version=self._version
        )
        try:
            await self._transport.send("metrics", payload)
        except ExportFailed as error:
            if self._was_sent:  # logged once, until an export succeeds
                _log.warning("metrics were not sent (%s); calls are not affected", error.reason)
            self._was_sent = False
        else:
            self._was_sent = True
