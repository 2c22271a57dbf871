"""The standard variables in a project that has no Telemetry document, as `gateway init` writes one."""

import gzip
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from collecting import Collector, collecting, sending_to
from secured import Caller, Reply, over_http, started
from served import served

from gateway.runtime.running import prepared
from gateway.runtime.settings import Settings
from gateway.telemetry import names
from gateway.telemetry.environment import CAPTURE
from gateway.telemetry.settings import TelemetryUnusable

pytestmark = pytest.mark.anyio

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
NOBODY_LISTENS = "http://127.0.0.1:9"
ARTICLE = "content-canary-4b"


def project(folder: Path) -> Path:
    subprocess.run([sys.executable, "-m", "gateway", "init", str(folder / "p")], check=True, capture_output=True)
    return folder / "p"


async def quoted(caller: Caller) -> Reply:
    return await caller.rest_call("starter", "price_quote", {"sku": ARTICLE, "quantity": 2})


def plain(collector: Collector) -> bytes:
    sent = zip(collector.payloads, collector.requests, strict=True)
    return b"".join(
        gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body for body, (_, headers) in sent
    )


async def test_the_variable_of_the_collector_is_enough_for_every_signal(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with collecting() as collector, aiohttp.ClientSession() as session:
        env = {**sending_to(collector), "OTEL_METRIC_EXPORT_INTERVAL": "50", "OTEL_SERVICE_NAME": "mine"}
        with served(folder, tmp_path / "data", env=env) as gateway:
            reply = await quoted(Caller(over_http(session, gateway.url), None))
            [call] = await collector.named("execute_tool price_quote")
            await collector.until(lambda known: known.told(names.CALL_STARTED))
            await collector.until(lambda known: "/v1/metrics" in {path for path, _ in known.requests})

    assert reply.status == 424  # there is no such article
    assert call.resource["service.name"] == "mine"
    assert sorted(call[names.ARGUMENT_KEYS]) == ["quantity", "sku"]
    assert ARTICLE.encode() not in plain(collector)


async def test_the_variable_of_one_signal_sends_that_one_alone(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces", "OTEL_BSP_SCHEDULE_DELAY": "20"}
        async with started(folder, tmp_path / "data", environ=env) as gateway:
            await quoted(gateway.caller(None))
            await collector.named("execute_tool price_quote")

    assert {path for path, _ in collector.requests} == {"/v1/traces"}


async def test_contents_are_not_sent_without_a_document_and_that_is_told(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with collecting() as collector:
        env = {**sending_to(collector), CAPTURE: "true"}
        async with started(folder, tmp_path / "data", environ=env) as gateway:
            await quoted(gateway.caller(None))
            await collector.named("execute_tool price_quote")
            warnings = [each for each in gateway.running.warnings if CAPTURE in each]
    async with started(folder, tmp_path / "data", environ=sending_to(collector)) as gateway:
        silent = [each for each in gateway.running.warnings if CAPTURE in each]

    assert ARTICLE.encode() not in plain(collector)
    assert warnings == [
        f"{CAPTURE} is not followed: contents of calls are only sent where a Telemetry document is in use"
    ]
    assert silent == []


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="without-variables"),
        pytest.param({CAPTURE: "true"}, id="without-a-collector"),
        pytest.param({ENDPOINT: NOBODY_LISTENS, "OTEL_SDK_DISABLED": "true"}, id="disabled"),
        pytest.param({ENDPOINT: "nonsense", "OTEL_SDK_DISABLED": "true"}, id="disabled-and-unreadable"),
    ],
)
async def test_nothing_is_sent_where_no_variable_asks_for_it(tmp_path: Path, environ: dict[str, str]) -> None:
    async with started(project(tmp_path), tmp_path / "data", environ=environ) as gateway:
        assert gateway.running.observing.telemetry is None
        assert [each for each in gateway.running.warnings if "OTEL_" in each] == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (ENDPOINT, "collector:4318"),
        ("OTEL_TRACES_SAMPLER_ARG", "abc"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "x"),
        (CAPTURE, "some"),
    ],
)
def test_a_value_that_cannot_be_read_stops_the_start(tmp_path: Path, variable: str, value: str) -> None:
    settings = Settings.model_validate({"configs": project(tmp_path)})

    with pytest.raises(TelemetryUnusable, match=variable):
        prepared(settings, environ={ENDPOINT: NOBODY_LISTENS, variable: value})
