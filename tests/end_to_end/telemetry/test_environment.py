"""The standard variables in a project without a Telemetry document, as `gateway init` writes it."""

import gzip
from pathlib import Path

import aiohttp
import pytest

from gateway.app.app import prepare_app
from gateway.app.settings import Settings
from gateway.telemetry import names
from gateway.telemetry.settings import CAPTURE, InvalidTelemetry
from tests.support.gateways.commands import run_gateway
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import Caller, Reply, send_http, start_gateway
from tests.support.servers.otlp_collector import Collector, sending_to, start_collector

pytestmark = pytest.mark.anyio

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
UNREACHABLE = "http://127.0.0.1:9"
ARTICLE = "content-canary-4b"


def project(folder: Path) -> Path:
    assert run_gateway("init", str(folder / "p")).returncode == 0
    return folder / "p"


async def quote_price(caller: Caller) -> Reply:
    return await caller.rest_call("starter", "price_quote", {"sku": ARTICLE, "quantity": 2})


def plain(collector: Collector) -> bytes:
    sent = zip(collector.payloads, collector.requests, strict=True)
    return b"".join(
        gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body for body, (_, headers) in sent
    )


async def test_the_variable_of_the_collector_is_enough_for_every_signal(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with start_collector() as collector, aiohttp.ClientSession() as session:
        env = {**sending_to(collector), "OTEL_METRIC_EXPORT_INTERVAL": "50", "OTEL_SERVICE_NAME": "mine"}
        with start_gateway_process(folder, tmp_path / "data", env=env) as gateway:
            reply = await quote_price(Caller(send_http(session, gateway.url), None))
            [call] = await collector.named("execute_tool price_quote")
            await collector.until(lambda known: known.events_named(names.CALL_STARTED))
            await collector.until(lambda known: "/v1/metrics" in {path for path, _ in known.requests})

    assert reply.status == 424  # there is no such article
    assert call.resource["service.name"] == "mine"
    assert sorted(call[names.ARGUMENT_KEYS]) == ["quantity", "sku"]
    assert ARTICLE.encode() not in plain(collector)


async def test_the_variable_of_one_signal_sends_that_one_alone(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with start_collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces", "OTEL_BSP_SCHEDULE_DELAY": "20"}
        async with start_gateway(folder, tmp_path / "data", environ=env) as gateway:
            await quote_price(gateway.caller(None))
            await collector.named("execute_tool price_quote")

    assert {path for path, _ in collector.requests} == {"/v1/traces"}


async def test_contents_are_not_sent_without_a_document_and_that_is_reported(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with start_collector() as collector:
        env = {**sending_to(collector), CAPTURE: "true"}
        async with start_gateway(folder, tmp_path / "data", environ=env) as gateway:
            await quote_price(gateway.caller(None))
            await collector.named("execute_tool price_quote")
            warnings = [each for each in gateway.running.warnings if CAPTURE in each]
    async with start_gateway(folder, tmp_path / "data", environ=sending_to(collector)) as gateway:
        silent = [each for each in gateway.running.warnings if CAPTURE in each]

    assert ARTICLE.encode() not in plain(collector)
    assert warnings == [f"{CAPTURE} is ignored: contents of calls are exported only if a Telemetry document is in use"]
    assert silent == []


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="without-variables"),
        pytest.param({CAPTURE: "true"}, id="without-a-collector"),
        pytest.param({ENDPOINT: UNREACHABLE, "OTEL_SDK_DISABLED": "true"}, id="disabled"),
        pytest.param({ENDPOINT: "nonsense", "OTEL_SDK_DISABLED": "true"}, id="disabled-and-unreadable"),
    ],
)
async def test_nothing_is_sent_where_no_variable_asks_for_it(tmp_path: Path, environ: dict[str, str]) -> None:
    async with start_gateway(project(tmp_path), tmp_path / "data", environ=environ) as gateway:
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

    with pytest.raises(InvalidTelemetry, match=variable):
        prepare_app(settings, environ={ENDPOINT: UNREACHABLE, variable: value})
