"""`/metrics` of real gateways: what is counted, who may read it, and how Prometheus reads it."""

import asyncio
import json
import logging
import re
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from gateway.app.metrics_collector import WORKER_METRICS_PATH, MetricsCollector
from gateway.telemetry import names
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import (
    ANA,
    HELD,
    LIZ,
    PEOPLE,
    POLICY,
    approval_client,
    grant,
    pay,
    pending_id,
    rule,
    start_gate_project,
    write,
)
from tests.support.gateways.projects import (
    LEGACY,
    Caller,
    Person,
    environ_of,
    http_tool,
    send_http,
    start_call_counter,
    start_gateway,
)
from tests.support.paths import ROOT
from tests.support.prometheus_programs import find_prometheus_program
from tests.support.servers.otlp_collector import attributes_of, sending_to, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

APPROVED = rule("leads-agree", HELD)
RATED = rule("one-a-day", {"type": "quota", "limit": 1, "per": "1d"}, tools=["plain"])
MADE_UP = "tool_that_nobody_has_ever_declared"


async def samples(metering: MetricsCollector) -> dict[str, float]:
    """Return every sample by name and labels, except the constant network labels."""
    content, _ = await metering.render("")
    found = {}
    for line in content.decode().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[re.sub(r'network_[a-z_]+="[^"]*",?', "", name).replace(",}", "}")] = float(value)
    return found


async def test_calls_decisions_and_approvals_are_counted(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path, APPROVED, RATED, tools=[lambda port: http_tool("down", 1)]) as (gateway, _):
        ana, liz = gateway.caller(ANA), gateway.caller(LIZ)

        assert (await ana.modern_call("desk", "plain", {"text": "x"})).json["result"]["isError"] is False
        assert (await ana.modern_call("desk", "plain", {"text": "x"})).json["result"]["isError"] is True
        await ana.modern_call("desk", MADE_UP, {})
        await ana.modern("desk", "nobody/asks_this")
        await ana.rest_call("desk", "down", {"text": "x"})
        await ana.rest_call("desk", "plain", {"wrong": 1})
        held = await pay(ana, "for a metric")
        before = await samples(gateway.running.metering)
        await grant(liz, pending_id(held))
        await pay(ana, "for a metric")
        after = await samples(gateway.running.metering)

    server = "mcp_server_operation_duration_seconds_count"
    execute = 'gen_ai_execute_tool_duration_seconds_count{gen_ai_operation_name="execute_tool",gen_ai_tool_name='
    where = 'gateway_catalogue_name="desk",gateway_trust_tier="internal"'
    known = 'gen_ai_tool_name="plain",gen_ai_operation_name="execute_tool"'
    decided = "gateway_decisions_total{gateway_decision="
    by_rule = 'gateway_policy_rule="leads-agree"'
    assert after[f'{server}{{mcp_method_name="tools/call",{known},mcp_protocol_version="2026-07-28"}}'] == 1
    refused = f'mcp_method_name="tools/call",{known},error_type="tool_error",mcp_protocol_version="2026-07-28"'
    assert after[f"{server}{{{refused}}}"] == 1
    assert MADE_UP not in str(after)
    assert [name for name in after if name.startswith(server) and '"tools/call",gen_ai_tool_name="_other"' in name]
    assert [name for name in after if name.startswith(server) and 'mcp_method_name="_other"' in name]
    assert after[f'{execute}"plain",gen_ai_tool_type="extension",{where}}}'] == 1
    assert after[f'{execute}"down",gen_ai_tool_type="extension",error_type="tool_error",{where}}}'] == 1
    assert after[f'{execute}"pay",gen_ai_tool_type="extension",{where}}}'] == 1
    assert after[f'{decided}"hold",gateway_decision_reason="approval-pending",{where},{by_rule}}}'] == 1
    assert after[f'{decided}"allow",gateway_decision_reason="approval-approved",{where},{by_rule}}}'] == 1
    assert after[f'{decided}"deny",gateway_decision_reason="arguments-invalid",{where}}}'] == 1
    assert after[f'{decided}"deny",gateway_decision_reason="unknown-tool",gateway_catalogue_name="desk"}}'] == 1
    limit = 'gateway_limit_kind="quota",gateway_catalogue_name="desk",gateway_policy_rule="one-a-day"'
    assert after[f"gateway_limits_total{{{limit}}}"] == 1
    assert before['gateway_approvals_pending{gateway_gate_name="leads-agree"}'] == 1
    assert after['gateway_approvals_pending{gateway_gate_name="leads-agree"}'] == 0
    outcome = 'gateway_gate_name="leads-agree",gateway_gate_outcome="granted"'
    assert after[f"gateway_approval_decisions_total{{{outcome}}}"] == 1
    assert after[f"gateway_approval_wait_seconds_count{{{outcome}}}"] == 1
    assert after["gateway_records_write_duration_seconds_count"] == 7
    assert after['gateway_spool_bytes_total{gateway_catalogue_name="desk"}'] > 0
    assert after["gateway_calls_running"] == 0


async def test_sessions_and_their_requests_are_counted(tmp_path: Path) -> None:
    async with start_gate_project(tmp_path) as (gateway, _):
        ana = gateway.caller(ANA)
        session = await ana.begin_legacy("desk")
        for arguments in ({"text": "x"}, {"wrong": 1}):
            await ana.legacy("desk", "tools/call", {"name": "plain", "arguments": arguments}, session=session)
        await ana.legacy("desk", "nobody/asks_this", session=session)
        ended = await ana.raw("DELETE", "/desk/mcp", mcp_session_id=session, mcp_protocol_version=LEGACY)
        found = await samples(gateway.running.metering)

    version = f'mcp_protocol_version="{LEGACY}"'
    server = "mcp_server_operation_duration_seconds_count{mcp_method_name="
    plain = 'gen_ai_tool_name="plain",gen_ai_operation_name="execute_tool"'
    assert ended.status == 204
    assert found[f"mcp_server_session_duration_seconds_count{{{version}}}"] == 1
    assert found[f'{server}"initialize",{version}}}'] == 1
    assert found[f'{server}"tools/call",{plain},{version}}}'] == 1
    assert found[f'{server}"tools/call",{plain},error_type="tool_error",{version}}}'] == 1
    assert found[f'{server}"_other",rpc_response_status_code="-32601",{version}}}'] == 1


@pytest.mark.parametrize(
    ("setting", "status"), [(None, 200), (True, 200), (False, 401)], ids=["loopback", "open", "closed"]
)
async def test_metrics_need_a_credential_unless_they_are_open(
    setting: bool | None, status: int, tmp_path: Path, forks: ForkServer
) -> None:
    env = {} if setting is None else {"GATEWAY_METRICS_OPEN": str(setting)}
    async with start_call_counter() as backend:
        with start_desk(forks, tmp_path, backend.port, env=env) as gateway:
            async with aiohttp.ClientSession() as session:
                async with session.get(f"{gateway.admin_url}/metrics") as answer:
                    assert answer.status == status
                async with session.post(f"{gateway.admin_url}/metrics", headers=bearer()) as answer:
                    assert answer.status == (403 if setting is False else 405)
                async with session.get(f"{gateway.admin_url}/metrics", headers=bearer(LIZ)) as answer:
                    assert answer.status == 200
                async with session.get(f"{gateway.admin_url}/status", headers=bearer(LIZ)) as answer:
                    assert answer.status == 403
                async with session.get(f"{gateway.url}/metrics", headers=bearer()) as answer:
                    assert answer.status == 404
                async with session.get(f"{gateway.admin_url}/metrics", headers={"host": "evil.example"}) as answer:
                    assert answer.status == 421


async def test_any_worker_serves_the_metrics_of_all(tmp_path: Path, forks: ForkServer) -> None:
    async with start_call_counter() as backend:
        with start_desk(forks, tmp_path, backend.port, options=("--workers", "2")) as gateway:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                ana = Caller(send_http(session, gateway.url), ANA.token)
                for index in range(24):
                    assert (await ana.rest_call("desk", "plain", {"text": str(index)})).status == 200
                seen = [await scrape(session, gateway) for _ in range(6)]
                sneaked = [
                    await session.get(
                        f"{gateway.url}{WORKER_METRICS_PATH}", headers={"mcp-session-id": f"{worker}.x", **bearer()}
                    )
                    for worker in (0, 1)
                ]

    ran = [
        sum(value for name, value in each.items() if name.startswith("gen_ai_execute_tool_duration_seconds_count"))
        for each in seen
    ]
    assert ran == [24] * 6
    assert all('gateway_calls_running{worker="0"}' in each for each in seen)
    assert all('gateway_calls_running{worker="1"}' in each for each in seen)
    assert [answer.status for answer in sneaked] == [404, 404]


async def test_prometheus_scrapes_and_answers_queries(tmp_path: Path, forks: ForkServer) -> None:
    prometheus = find_prometheus_program("prometheus")
    async with start_call_counter() as backend:
        with start_desk(forks, tmp_path, backend.port) as gateway:
            async with aiohttp.ClientSession() as session, run_prometheus(prometheus, tmp_path, gateway) as url:
                ana = Caller(send_http(session, gateway.url), ANA.token)
                for index in range(5):
                    await ana.rest_call("desk", "plain", {"text": str(index)})
                    await ana.rest_call("desk", MADE_UP, {})
                allowed = await wait_for_value(
                    session, url, 'sum(gateway_decisions_total{gateway_decision="allow"})', "5"
                )
                targets = await wait_for_value(session, url, "count(target_info)", "1")
                quantile = "histogram_quantile(0.5, sum by (le) (gen_ai_execute_tool_duration_seconds_bucket))"
                median = await value_of(session, url, quantile)
                invented = await value_of(session, url, f'count({{gen_ai_tool_name="{MADE_UP}"}})')
                panels = [await is_understood(session, url, each) for each in dashboard_expressions()]
                rules = await wait_for_rules(session, url)

    assert (allowed, targets) == ("5", "1")
    assert median is not None
    assert 0 < float(median) < 10
    assert invented is None
    assert len(panels) > 20
    assert all(panels)
    assert {each["health"] for each in rules} == {"ok"}


def dashboard_expressions() -> list[str]:
    """Return the expressions of the panels, with the dashboard's variables filled in."""
    panels = json.loads((ROOT / "dashboards" / "grafana.json").read_text(encoding="utf-8"))["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    return [re.sub(r"\$\w+", ".*", each.replace("$__rate_interval", "1m").replace("$__range", "1h")) for each in found]


async def is_understood(session: aiohttp.ClientSession, url: str, query: str) -> bool:
    async with session.get(f"{url}/api/v1/query", params={"query": query}) as answer:
        body: Any = await answer.json()
        return bool(body["status"] == "success")


async def wait_for_rules(session: aiohttp.ClientSession, url: str) -> list[Any]:
    """Wait until Prometheus has evaluated all alerts and return them."""
    async with asyncio.timeout(60):
        while True:
            async with session.get(f"{url}/api/v1/rules") as answer:
                groups = (await answer.json())["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            if rules and all(each["health"] != "unknown" for each in rules):
                return rules
            await asyncio.sleep(0.1)


@contextmanager
def start_desk(
    forks: ForkServer, folder: Path, port: int, *, env: dict[str, str] | None = None, options: tuple[str, ...] = ()
) -> Iterator[GatewayFork]:
    project = write(
        folder / "p", approval_client(port), policy=f"{POLICY}p, user:liz, desk, config, observe, internal, allow\n"
    )
    environ = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(folder / "data"), **(env or {})}
    gateway = forks.start(project, folder / "data", env=environ, options=options)
    try:
        yield gateway
    finally:
        gateway.kill()


def bearer(person: Person = ANA) -> dict[str, str]:
    return {"authorization": f"Bearer {person.token}"}


async def scrape(session: aiohttp.ClientSession, gateway: GatewayFork) -> dict[str, float]:
    async with session.get(f"{gateway.admin_url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


@asynccontextmanager
async def run_prometheus(prometheus: str, folder: Path, gateway: GatewayFork) -> AsyncIterator[str]:
    """Run a Prometheus that scrapes the gateway every second, and yield its URL."""
    target = gateway.admin_url.removeprefix("http://")
    job = {"job_name": "gateway", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"evaluation_interval": "1s"},
                "scrape_configs": [job],
                "rule_files": [str(ROOT / "dashboards" / "alerts.yaml")],
            }
        ),
        encoding="utf-8",
    )
    (folder / "store").mkdir()
    process = await asyncio.create_subprocess_exec(
        prometheus,
        *("--config.file=prometheus.yml", "--storage.tsdb.path=store", "--web.listen-address=127.0.0.1:0"),
        *("--log.format=json", "--log.level=info"),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        yield await _read_address(process)
    finally:
        process.kill()
        await process.wait()


async def _read_address(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    async with asyncio.timeout(60):
        while line := await process.stderr.readline():
            entry = json.loads(line)
            if entry.get("msg") == "Listening on" and "address" in entry:
                return f"http://{entry['address']}"
    raise AssertionError("prometheus did not start")


async def wait_for_value(session: aiohttp.ClientSession, url: str, query: str, wanted: str) -> str | None:
    """Query until the wanted value appears: the end of a scrape is not announced."""
    found: str | None = None
    async with asyncio.timeout(60):
        while found != wanted:
            found = await value_of(session, url, query)
            await asyncio.sleep(0.1)
    return found


async def value_of(session: aiohttp.ClientSession, url: str, query: str) -> str | None:
    async with session.get(f"{url}/api/v1/query?query={quote(query)}") as answer:
        body: Any = await answer.json()
    if body["status"] != "success" or not body["data"]["result"]:
        return None
    return str(body["data"]["result"][0]["value"][1])


async def test_metrics_are_sent_to_a_collector_with_traces_as_examples(tmp_path: Path) -> None:
    async with start_collector() as collector, start_call_counter() as backend:
        project = write(tmp_path / "p", wait_for_spans(approval_client(backend.port)))
        env = {**sending_to(collector), "OTEL_METRIC_EXPORT_INTERVAL": "50"}
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=env) as gateway:
            ana = gateway.caller(ANA)
            await ana.modern_call("desk", "plain", {"text": "x"})
            await collector.until(lambda known: find_durations(known.payloads, known.requests))
            [span] = await collector.named("execute_tool plain")
            text, type = await gateway.running.metering.render("application/openmetrics-text")
        resource, metric = find_durations(collector.payloads, collector.requests)

    [point] = metric.histogram.data_points
    [example] = point.exemplars
    attributes = {each.key: each.value.string_value for each in point.attributes}
    assert resource["service.name"] == "agent-gateway"
    assert (metric.unit, metric.histogram.aggregation_temporality) == ("s", 2)
    assert list(point.explicit_bounds) == list(names.EXECUTE_BUCKETS)
    assert (point.count, sum(point.bucket_counts)) == (1, 1)
    assert attributes[names.TOOL_NAME] == "plain"
    assert (example.trace_id.hex(), example.span_id.hex()) == span.address
    assert f'# {{trace_id="{span.trace}",span_id="{span.id}"}}' in text.decode()
    assert "otel_sdk_processor_span_processed_total 3" in text.decode()
    assert type.startswith("application/openmetrics-text")


def find_durations(payloads: Sequence[bytes], requests: Sequence[tuple[str, Any]]) -> Any:
    """Return the resource and metric of the first call durations: later exports do not repeat their exemplars."""
    sent = [payload for payload, (path, _) in zip(payloads, requests, strict=True) if path == "/v1/metrics"]
    for payload in sent:
        [found] = MetricsData.FromString(payload).resource_metrics
        for metric in found.scope_metrics[0].metrics:
            if metric.name == names.EXECUTE_DURATION.name:
                return attributes_of(found.resource.attributes), metric
    return None


async def test_collector_that_is_down_changes_nothing_but_the_log(tmp_path: Path, caplog: Any) -> None:
    async with start_call_counter() as backend:
        sent = {"exporter": {"type": "otlp-http", "endpoint": "http://127.0.0.1:1"}, "every": "1ms"}
        project = write(tmp_path / "p", wait_for_spans(approval_client(backend.port), metrics=sent))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            for _ in range(20):
                answer = await gateway.caller(ANA).rest_call("desk", "plain", {"text": "x"})
                assert answer.status == 200

    assert [each for each in caplog.messages if "metrics were not sent (unreachable)" in each]
    assert len(caplog.messages) < 5


async def test_tools_that_fail_in_a_batch_are_errors_on_their_spans_and_in_their_metrics(tmp_path: Path) -> None:
    version = "2025-03-26"
    async with start_collector() as collector, start_call_counter() as backend:
        project = write(tmp_path / "p", wait_for_spans(approval_client(backend.port, tools=[http_tool("down", 1)])))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=sending_to(collector)) as gateway:
            ana = gateway.caller(ANA)
            params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
            begun = await ana.legacy("desk", "initialize", params)
            session = begun.header("mcp-session-id")
            assert session is not None
            called = {tool: {"name": tool, "arguments": {"text": "x"}} for tool in ("plain", "down")}
            batch = [
                {"jsonrpc": "2.0", "id": tool, "method": "tools/call", "params": each} for tool, each in called.items()
            ]
            more = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
            headers = {"mcp_session_id": session, "mcp_protocol_version": version}
            answer = await ana.raw("POST", "/desk/mcp", json.dumps(batch).encode(), **more, **headers)
            counted = await samples(gateway.running.metering)

    assert [each["result"]["isError"] for each in answer.json] == [False, True]
    spans = {each[names.REQUEST_ID]: each for each in collector.spans if each.name.startswith("tools/call ")}
    assert (spans["plain"].is_error, spans["down"].is_error) == (False, True)
    assert spans["down"][names.ERROR_TYPE] == "tool_error"
    server = 'mcp_server_operation_duration_seconds_count{mcp_method_name="tools/call",gen_ai_tool_name='
    rest = f'gen_ai_operation_name="execute_tool",%smcp_protocol_version="{version}"}}'
    assert counted[f'{server}"plain",{rest % ""}'] == 1
    failed = rest % 'error_type="tool_error",'
    assert counted[f'{server}"down",{failed}'] == 1


async def test_logs_are_sent_where_the_document_asks_for_it(tmp_path: Path) -> None:
    log = logging.getLogger("gateway.test_of_logs")
    async with start_collector() as collector, start_call_counter() as backend:
        project = write(tmp_path / "p", wait_for_spans(approval_client(backend.port), logs={}))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=sending_to(collector)):
            log.error("a problem that is %s", "handled", exc_info=ValueError("with a canary-77"))
            await collector.until(lambda known: any(each[names.LOGGER] == log.name for each in known.events))
        log.error("after the end")

    [event] = [each for each in collector.events if each[names.LOGGER] == log.name]
    assert event[names.ERROR_TYPE] == "ValueError"
    assert any(b"a problem that is handled" in each for each in collector.payloads)
    assert not any(b"canary-77" in each for each in collector.payloads)
