"""Series that exist from the start, and what the process says about itself."""

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from gateway.server.http.admission import AdmissionControl, LoopMonitor
from tests.support.gateways.gate_projects import ANA, HELD, PEOPLE, approval_client, rule, write
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import start_call_counter, start_gateway
from tests.support.paths import ROOT
from tests.support.prometheus_programs import find_prometheus_program
from tests.support.servers.otel_agent import reference, written
from tests.support.servers.otlp_collector import sending_to, start_collector

pytestmark = pytest.mark.anyio

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:\\.|[^"\\])*)"')
OF_UPSTREAMS = {"gateway_definition_changes_total"}


def increases() -> list[Any]:
    """Return the counters whose increase is an alert, with what the alert says about their labels."""
    [group] = yaml.safe_load((ROOT / "dashboards" / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    found = []
    for each in group["rules"]:
        for name, matchers in re.findall(r"increase\((\w+_total)(?:\{(.*?)\})?\[", each["expr"]):
            found.append(pytest.param(name, matchers, id=each["alert"]))
    return found


def find_samples(text: str, name: str, matchers: str = "") -> dict[str, float]:
    """Return the samples of the metric that the matchers select, by their labels."""
    found = {}
    for sample, labels, value in SAMPLE.findall(text):
        told = dict(LABEL.findall(labels))
        wanted = re.findall(r'(\w+)(=~|!=|=)"(.*?)"', matchers)
        if sample == name and all(_matches(told.get(label, ""), sign, value) for label, sign, value in wanted):
            found[labels] = float(value)
    return found


def _matches(found: str, sign: str, wanted: str) -> bool:
    return (re.fullmatch(wanted, found) is not None) if sign == "=~" else (found == wanted) == (sign == "=")


async def test_every_counter_of_an_alert_starts_at_zero(tmp_path: Path) -> None:
    async with start_collector() as collector, start_call_counter() as backend:
        project = write(tmp_path / "p", approval_client(backend.port, rules=[rule("leads-agree", HELD)]))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE, environ=sending_to(collector)) as gateway:
            text = (await gateway.running.metering.render(""))[0].decode()

    missing = []
    for name, matchers in (each.values for each in increases()):
        samples = find_samples(text, str(name), str(matchers))
        if not samples or any(samples.values()):
            missing.append(name)
    assert set(missing) == OF_UPSTREAMS


async def test_first_event_after_the_start_raises_its_alert(tmp_path: Path) -> None:
    promtool = find_prometheus_program("promtool")
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", approval_client(backend.port))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            ana, meters = gateway.caller(ANA), gateway.running.metering.meters
            before = (await gateway.running.metering.render(""))[0].decode()
            for number in range(101):
                await ana.rest_call("desk", f"invented_{number}", {})
                await ana.raw("GET", "/v1/catalogues", authorization="Bearer nonsense")
            meters.count_reload("refused")
            meters.record_write_failure()
            meters.count_unknown(1)
            after = (await gateway.running.metering.render(""))[0].decode()
    raised = {
        "GatewayUnknownToolsProbed": {},
        "GatewayCredentialsRefused": {"instance": "i"},
        "GatewayReloadRefused": {"instance": "i"},
        "GatewayRecordsUnavailable": {"instance": "i"},
        "GatewayOutcomeUnknown": {},
    }

    for start, is_raised in ((before, True), ("", False)):  # without a start at 0, no alert is raised
        series = recorded(start, after)
        for alert, labels in raised.items():
            path = tmp_path / f"{alert}.yaml"
            path.write_text(json.dumps(alert_test(alert, series, {"job": "j", **labels})), encoding="utf-8")
            found = subprocess.run([promtool, "test", "rules", path], capture_output=True, text=True, timeout=60)
            assert (found.returncode == 0) == is_raised, (alert, found.stdout, found.stderr)


def recorded(before: str, after: str) -> list[dict[str, str]]:
    """Return the series of two scrapes, the first at the start and the second two minutes later."""
    known = {(name, labels): value for name, labels, value in SAMPLE.findall(before)}
    series = []
    for name, labels, value in SAMPLE.findall(after):
        first = known.get((name, labels))
        told = ", ".join(filter(None, [labels, 'job="j", instance="i"']))
        values = f"{'_' if first is None else first} {'_' if first is None else first} {value}+0x5"
        series.append({"series": f"{name}{{{told}}}", "values": values})
    return series


def alert_test(alert: str, series: list[dict[str, str]], labels: dict[str, str]) -> dict[str, Any]:
    path = ROOT / "dashboards" / "alerts.yaml"
    [group] = yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    [found] = [each for each in group["rules"] if each["alert"] == alert]
    filled = {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match.group(1)], text)
        for name, text in found["annotations"].items()
    }
    expected = {"exp_labels": {**found["labels"], **labels}, "exp_annotations": filled}
    case = {"eval_time": "4m", "alertname": alert, "exp_alerts": [expected]}
    return {
        "rule_files": [str(path)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": [case]}],
    }


async def test_upstream_servers_have_states_and_counts_of_changes(tmp_path: Path) -> None:
    async with start_collector() as collector, reference(collector.url, "modern") as (url, _):
        folder = written(tmp_path / "p", url)
        with start_gateway_process(folder, tmp_path / "data", env={}) as gateway:
            found: dict[str, float] = {}
            async with aiohttp.ClientSession() as session, asyncio.timeout(20):
                while not any(value == 0 for value in found.values()):  # until its first probe
                    async with session.get(f"{gateway.admin_url}/metrics") as answer:
                        text = await answer.text()
                    found = find_samples(text, "gateway_upstream_state")
            assert await asyncio.to_thread(gateway.stop) == 0

    assert list(found) == ['gateway_upstream_name="remote"']
    assert find_samples(text, "gateway_definition_changes_total") == {'gateway_upstream_name="remote"': 0}


async def test_process_describes_itself(tmp_path: Path) -> None:
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", approval_client(backend.port))
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            meters = gateway.running.metering.meters
            admission = AdmissionControl(1, queue=1, wait=60, meter=meters)
            await queue_once(admission)
            monitor = LoopMonitor(admission)
            monitor.start()
            await asyncio.sleep(0.1)
            await monitor.close()
            text = (await gateway.running.metering.render(""))[0].decode()

    assert 0 < find_samples(text, "process_memory_usage_bytes")[""] < 1 << 40
    assert find_samples(text, "process_unix_file_descriptor_count")[""] > 3
    assert 0 < find_samples(text, "process_uptime_seconds")[""] < 24 * 3600
    assert set(find_samples(text, "process_cpu_time_seconds_total")) == {'cpu_mode="user"', 'cpu_mode="system"'}
    assert find_samples(text, "gateway_event_loop_lag_seconds_count")[""] > 0
    assert find_samples(text, "gateway_admission_wait_seconds_count") == {"": 1}
    assert find_samples(text, "gateway_admission_queue_length") == {"": 0}


async def queue_once(admission: AdmissionControl) -> None:
    """Let one request wait until another one has ended."""
    scope = {"type": "http", "headers": [], "client": ("127.0.0.1", 1)}
    assert await admission.acquire(scope)
    waiting = asyncio.create_task(admission.acquire(scope))
    while not admission.queued:
        await asyncio.sleep(0)
    admission.release()
    assert await waiting
