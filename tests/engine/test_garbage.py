"""Calls create no reference cycles: finding them would cost every call a garbage collection."""

import gc
from pathlib import Path

import pytest

from gateway.audit.content_key import ContentKey
from gateway.telemetry.export.queue import Queue
from gateway.telemetry.observer import TelemetryObserver
from gateway.telemetry.settings import BatchSettings, SamplingSettings, TelemetrySettings
from tests.engine.service_gateway import ANA, Plan, running

pytestmark = pytest.mark.anyio

CALLS = 20
KEY = ContentKey(bytes(range(160, 192)))


@pytest.mark.parametrize("is_observed", [False, True])
async def test_call_leaves_no_cycles(tmp_path: Path, is_observed: bool) -> None:
    spans = Queue(BatchSettings())
    observer = TelemetryObserver(
        TelemetrySettings({}, sampling=SamplingSettings(ratio=1.0)), spans=spans, logs=None, hashes=KEY
    )
    async with running(tmp_path, Plan().tool("echo", "x"), observer=observer if is_observed else None) as gateway:
        await gateway.service.call_tool(ANA, "desk", "echo", {})
        gc.collect()
        gc.disable()
        try:
            for _ in range(CALLS):
                await gateway.service.call_tool(ANA, "desk", "echo", {})
            assert gc.collect() < CALLS
        finally:
            gc.enable()
    assert bool(spans.taken) is is_observed
