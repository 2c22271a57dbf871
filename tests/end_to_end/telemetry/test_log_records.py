"""Log records: lines of tools with the ids of their span, what they show, and exporters of other packages."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from gateway.telemetry import names
from gateway.telemetry.settings import InvalidTelemetry
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.projects import (
    ANY_TEXT,
    Document,
    GatewayUnderTest,
    document,
    start_call_counter,
    start_gateway,
)
from tests.support.servers.otlp_collector import Collector, Event, sending_to, start_collector, wait_for_spans
from tests.support.servers.telemetry_plugins import install_plugins

pytestmark = pytest.mark.anyio

TOOLS = "tests.support.tools.logging_tools"
CONTENT = "canary-of-a-call"
EXPORTERS = "opentelemetry_logs_exporter"
VALUES: Any = {"capture": {"arguments": "values"}}
FUNCTIONS = {
    "loop": ("note_later", "loop"),
    "thread": ("note", "thread"),
    "within": ("note_within", "thread"),
    "by_name": ("note_by_name", "thread"),
}


def noting_tool(name: str, function: str, run: str, **more: Any) -> Document:
    spec: dict[str, Any] = {
        "version": "1.0.0",
        "description": "Logs.",
        "input": {"schema": ANY_TEXT},
        "backend": {"type": "python", "entrypoint": f"{TOOLS}:{function}", "run": run},
        "trust": {"tier": "internal", "flags": []},
        **more,
    }
    return document("Tool", name, spec)


@asynccontextmanager
async def start_desk(
    tmp_path: Path, environ: dict[str, str], *documents: Document, tools: tuple[Document, ...] = (), **telemetry: Any
) -> AsyncIterator[GatewayUnderTest]:
    async with start_call_counter() as backend:
        made = [*(noting_tool(name, *how) for name, how in FUNCTIONS.items()), *tools]
        found = [*wait_for_spans(approval_client(backend.port, tools=made), **telemetry), *documents]
        project = write(tmp_path / "p", found)
        environ = {**environ, "GATEWAY_PYTHON_PACKAGES": TOOLS}
        async with start_gateway(
            project, tmp_path / "data", people=PEOPLE, environ=environ, python_packages=(TOOLS,)
        ) as running:
            yield running


async def log_once(
    tmp_path: Path, tool: str, *documents: Document, tools: tuple[Document, ...] = (), **telemetry: Any
) -> tuple[Event, Collector]:
    """Call the tool; return the record of its line."""
    async with start_collector() as collector:
        async with start_desk(
            tmp_path, sending_to(collector), *documents, tools=tools, logs={}, **telemetry
        ) as running:
            answer = await running.caller(ANA).rest_call("desk", tool, {"text": CONTENT})
            assert answer.status == 200, answer.body
            await collector.until(lambda known: known.of(f"execute_tool {tool}"))
            await collector.until(lambda known: [each for each in known.events if each[names.LOGGER] == "acme.shop"])
        [event] = [each for each in collector.events if each[names.LOGGER] == "acme.shop"]
    return event, collector


@pytest.mark.parametrize("tool", ["loop", "thread"])
async def test_line_of_a_tool_has_the_ids_of_its_call_and_no_contents(tool: str, tmp_path: Path) -> None:
    event, collector = await log_once(tmp_path, tool)

    [span] = collector.of(f"execute_tool {tool}")
    assert event.address == span.address
    assert (event.body, event.severity) == ("order %s of %d parts", 13)
    assert (event[names.TOOL_NAME], event[names.LOG_ARGUMENTS], event["customer"]) == (tool, None, None)
    assert not any(CONTENT.encode() in each for each in collector.payloads)


async def test_line_within_a_span_of_the_tool_has_the_ids_of_that_span(tmp_path: Path) -> None:
    event, collector = await log_once(tmp_path, "within")

    [span] = collector.of("execute_tool within")
    assert event.address == (span.trace, f"{0x4711:016x}")


async def test_arguments_are_kept_where_the_document_allows_contents(tmp_path: Path) -> None:
    event, collector = await log_once(tmp_path, "thread", **VALUES)

    assert event.body == f"order {CONTENT} of 3 parts"
    assert event[names.LOG_TEMPLATE] == "order %s of %d parts"
    assert event[names.LOG_ARGUMENTS] == [CONTENT, "3"]
    assert (event["shelf"], event["customer"], event["api_token"]) == (2, CONTENT, "***")
    assert not any(b"key-of-" in each for each in collector.payloads)


async def test_arguments_with_names_are_masked_by_their_names(tmp_path: Path) -> None:
    event, _ = await log_once(tmp_path, "by_name", **VALUES)

    assert event[names.LOG_ARGUMENTS] == [f"order={CONTENT}", "password=***"]


@pytest.mark.parametrize(
    "shown", [{"redact": ["$.name"]}, {"capture": {"arguments": "keys", "results": "none"}}], ids=["redact", "capture"]
)
async def test_class_of_the_tool_can_keep_arguments_back(shown: dict[str, Any], tmp_path: Path) -> None:
    closed = document("ArtifactClass", "closed", {"description": "Closed.", "base": "json", **shown})
    tool = noting_tool("kept", "note", "thread", output={"artifact": "closed"})

    event, collector = await log_once(tmp_path, "kept", closed, tools=(tool,), **VALUES)

    assert event.body == "order %s of %d parts"
    assert event[names.LOG_ARGUMENTS] is None
    assert b"key-of-" not in b"".join(collector.payloads)


async def test_line_of_the_gateway_has_its_template_and_arguments(tmp_path: Path) -> None:
    log = logging.getLogger("gateway.test_of_records")
    async with start_collector() as collector, start_desk(tmp_path, sending_to(collector), logs={}):
        log.error("shelf %s is %s", 7, "full")
        await collector.until(lambda known: [each for each in known.events if each[names.LOGGER] == log.name])
    [event] = [each for each in collector.events if each[names.LOGGER] == log.name]

    assert (event.body, event.severity) == ("shelf 7 is full", 17)
    assert (event[names.LOG_TEMPLATE], event[names.LOG_ARGUMENTS]) == ("shelf %s is %s", ["7", "full"])
    assert event.trace == ""


async def test_exporter_of_another_package_gets_what_the_collector_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "logs.jsonl"
    monkeypatch.setenv("ACME_LOGS", str(file))
    async with start_collector() as collector:
        environ = {**sending_to(collector), "OTEL_LOGS_EXPORTER": "otlp,acme_file"}
        with install_plugins(tmp_path, {EXPORTERS: {"acme_file": "FileLogExporter"}}):
            async with start_desk(tmp_path, environ) as running:
                await running.caller(ANA).rest_call("desk", "thread", {"text": CONTENT})
            status = running.running.observing.status()

    [sent] = collector.events_named(names.CALL_STARTED)
    [written] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert written["event_name"] == names.CALL_STARTED
    assert (written["trace_id"], written["span_id"]) == (f"0x{sent.trace}", f"0x{sent.id}")
    assert written["attributes"] == dict(sent.attributes)
    assert written["resource"]["attributes"]["service.name"] == "agent-gateway"
    assert status["telemetry"]["logRecords"] == {"taken": 1, "waiting": 0, "dropped": {}}


async def test_exporter_that_is_not_installed_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidTelemetry, match="OTEL_LOGS_EXPORTER"):
        async with start_desk(tmp_path, {"OTEL_LOGS_EXPORTER": "missing"}):
            pass


async def test_provider_of_the_process_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    monkeypatch.setattr("opentelemetry._logs._internal._LOGGER_PROVIDER", provider)
    async with start_collector() as collector:
        environ = {**sending_to(collector), "OTEL_LOGS_EXPORTER": "otlp"}  # which configured that provider
        async with start_desk(tmp_path, environ) as running:
            await running.caller(ANA).rest_call("desk", "thread", {"text": CONTENT})
            [span] = await collector.named("execute_tool thread")

    [kept] = exporter.get_finished_logs()
    assert kept.log_record.event_name == names.CALL_STARTED
    assert kept.log_record.span_id == int(span.id, 16)
    assert collector.events == []
