"""Where the metrics of a process go: a `MeterProvider` of the SDK with its readers and views.

The provider is that of the process, if one is set, as in an application that embeds the gateway or under automatic
instrumentation. Otherwise the pipeline has its own, with the exporters of the Telemetry document or of the variables.
Exporters and readers of other packages are entry points in the group `opentelemetry_metrics_exporter`, as everywhere.
Views are entry points in the group `gateway_metric_views`: a view, a list of them, or a function that returns a list.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final

from opentelemetry.metrics import Meter, get_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    InMemoryMetricReader,
    MetricExporter,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource

from gateway.telemetry import names
from gateway.telemetry.export.delivery import FLUSH_SECONDS
from gateway.telemetry.export.otlp_exporters import OtlpMetricExporter
from gateway.telemetry.export.otlp_transports import open_transport
from gateway.telemetry.sdk_components import find_views, load_exporter
from gateway.telemetry.settings import (
    AnyExporter,
    InvalidTelemetry,
    PluginSettings,
    TelemetrySettings,
    describe_exporter,
)

_log: Final = logging.getLogger(__name__)


class MeterPipeline:
    """The metrics of a gateway. Nothing is kept for as long as there is no reader."""

    def __init__(self, settings: TelemetrySettings, *, instance: str, version: str) -> None:
        """Raises `InvalidTelemetry` for exporters and views that cannot be used."""
        self._settings = settings
        self._exporters: list[OtlpMetricExporter] = []
        self._served: InMemoryMetricReader | None = None
        found, views = get_meter_provider(), find_views()
        made = {
            each: load_exporter("metrics", each.name, MetricExporter, MetricReader)
            for each in settings.metrics
            if isinstance(each, PluginSettings)
        }
        readers = [self._create_reader(each, made) for each in settings.metrics]
        self._is_own = not isinstance(found, MeterProvider)
        if isinstance(found, MeterProvider):
            self._provider = found
            for each in readers:
                found.add_metric_reader(each)
        else:
            self._provider = _create_provider(settings, readers, views)
        self._readers: list[MetricReader] = readers
        words = [describe_exporter(each) for each in settings.metrics]
        words += [] if self._is_own else ["the meter provider of the process"]
        words += [f"{len(views)} views of other packages"] if views and self._is_own else []
        if words:
            _log.info("metrics are sent: %s", "; ".join(words))
        # Instruments of one scope exist once in a provider, and the process may start several gateways.
        apart = None if self._is_own else {"service.instance.id": instance}
        self.meter: Meter = self._provider.get_meter(names.SCOPE, version, names.SCHEMA_URL, apart)

    def serve(self) -> None:
        """Keep measurements for `collect` from now on."""
        if self._served is None:
            self._served = InMemoryMetricReader()
            self._provider.add_metric_reader(self._served)
            self._readers.append(self._served)

    def collect(self) -> MetricsData | None:
        """Return all metrics since `serve`. It calls every callback, and must not run in the event loop."""
        return None if self._served is None else self._served.get_metrics_data()

    async def close(self) -> None:
        """Send the last values, for at most `FLUSH_SECONDS`. Later calls do nothing."""
        for exporter in self._exporters:
            exporter.limit()
        readers, self._readers, self._exporters, self._served = self._readers, [], [], None
        await asyncio.to_thread(self._shut_down, readers)

    def _shut_down(self, readers: Sequence[MetricReader]) -> None:
        until = monotonic() + FLUSH_SECONDS
        for each in readers:
            left = max(until - monotonic(), 0.001) * 1000
            try:
                if self._is_own:
                    each.shutdown(timeout_millis=left)
                else:  # removed first, a reader could not collect the last values
                    each.force_flush(timeout_millis=left)
                    self._provider.remove_metric_reader(each)
            except Exception:  # of a reader that is not ours
                _log.exception("the last metrics could not be sent")

    def _create_reader(
        self, settings: AnyExporter, plugins: Mapping[PluginSettings, MetricExporter | MetricReader]
    ) -> MetricReader:
        if isinstance(settings, PluginSettings):
            made = plugins[settings]
        else:
            made = OtlpMetricExporter(open_transport(settings))
            self._exporters.append(made)
        if isinstance(made, MetricReader):
            return made
        every, timeout = self._settings.metrics_every, self._settings.metrics_timeout
        return PeriodicExportingMetricReader(made, every * 1000, timeout * 1000)


def has_meter_provider() -> bool:
    """Whether the process has a provider with readers of its own."""
    return isinstance(get_meter_provider(), MeterProvider)


def _create_provider(
    settings: TelemetrySettings, readers: Sequence[MetricReader], views: Sequence[View]
) -> MeterProvider:
    resource = Resource(dict(settings.resource), names.SCHEMA_URL)
    try:
        provider = MeterProvider(readers, resource, shutdown_on_exit=False, views=views)
    except ValueError as error:  # an unknown exemplar filter
        raise InvalidTelemetry("metrics cannot be set up", help="check OTEL_METRICS_EXEMPLAR_FILTER") from error
    provider._disabled = False  # OTEL_SDK_DISABLED stops exporters, not the metrics that the gateway serves itself
    return provider
