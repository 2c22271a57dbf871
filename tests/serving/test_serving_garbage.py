"""Calls leave nothing behind that only the garbage collector finds: looking for it would cost every call."""

import gc
from pathlib import Path

import pytest
from serving_gateway import ANA, Plan, running

from gateway.audit.contents import ContentKey
from gateway.telemetry.exporting import Queue
from gateway.telemetry.observing import Telemetry
from gateway.telemetry.settings import Batching, Sampling, Settings

pytestmark = pytest.mark.anyio

CALLS = 20
KEY = ContentKey(bytes(range(160, 192)))


@pytest.mark.parametrize("is_observed", [False, True])
async def test_call_leaves_no_cycles(tmp_path: Path, is_observed: bool) -> None:
    spans = Queue(Batching())
    observer = Telemetry(Settings({}, sampling=Sampling(ratio=1.0)), spans=spans, logs=None, hashes=KEY)
    async with running(tmp_path, Plan().tool("echo", "x"), observer=observer if is_observed else None) as gateway:
        await gateway.service.call_alone(ANA, "desk", "echo", {})
        gc.collect()
        gc.disable()
        try:
            for _ in range(CALLS):
                await gateway.service.call_alone(ANA, "desk", "echo", {})
            assert gc.collect() < CALLS
        finally:
            gc.enable()
    assert bool(spans.taken) is is_observed
