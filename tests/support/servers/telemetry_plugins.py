"""A package of its own with parts for telemetry, as an installed distribution: a folder with metadata on the path."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

PARTS = '''
import json
import os

from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View

READERS = []


class FileExporter(MetricExporter):
    """Appends every export to a file."""

    def export(self, metrics_data, timeout_millis=10_000, **kwargs):
        with open(os.environ["ACME_METRICS"], "a", encoding="utf-8") as file:
            file.write(json.dumps(json.loads(metrics_data.to_json())) + "\\n")
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis=10_000):
        return True

    def shutdown(self, timeout_millis=30_000, **kwargs):
        pass


class KeptReader(InMemoryMetricReader):
    def __init__(self):
        super().__init__()
        READERS.append(self)


class FileLogExporter(LogRecordExporter):
    """Appends every record to a file."""

    def export(self, batch):
        with open(os.environ["ACME_LOGS"], "a", encoding="utf-8") as file:
            for each in batch:
                file.write(json.dumps(json.loads(each.to_json())) + "\\n")
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis=30_000):
        return True

    def shutdown(self):
        pass


def views():
    buckets = ExplicitBucketHistogramAggregation((0.5, 60.0))
    name = "gen_ai.execute_tool.duration"
    return [View(instrument_name=name, attribute_keys={"gen_ai.tool.name"}, aggregation=buckets)]


no_exporter = 4711
broken_views = [4711]
'''


@contextmanager
def install_plugins(folder: Path, entry_points: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Install the package `acme_telemetry` with these entry points, for as long as the context lasts."""
    site = folder / "site"
    metadata = site / "acme_telemetry-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / "acme_telemetry.py").write_text(PARTS, encoding="utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-telemetry\nVersion: 1.0\n", encoding="utf-8")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = acme_telemetry:{value}\n" for name, value in entries.items())
        for group, entries in entry_points.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    sys.path.insert(0, str(site))
    try:
        yield
    finally:
        sys.path.remove(str(site))
        sys.modules.pop("acme_telemetry", None)
