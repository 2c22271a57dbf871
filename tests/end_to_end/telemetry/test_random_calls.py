"""Every start has its end, whatever happens to the call, the caller or the process: random calls and a kill.

TELEMETRY_CALLS is roughly the number of calls: half of them in a process that is killed, half in the next one.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from gateway.storage.call_store import CallFilter, StoredCall
from gateway.telemetry import names
from tests.support.gateways.gate_projects import ANA, HELD, LIZ, PEOPLE, approval_client, grant, pending_id, rule, write
from tests.support.gateways.process import start_gateway_process
from tests.support.gateways.projects import (
    CallCounter,
    Caller,
    Document,
    GatewayUnderTest,
    environ_of,
    http_tool,
    send_http,
    start_call_counter,
    start_gateway,
)
from tests.support.servers.otlp_collector import Collector, sending_to, start_collector, wait_for_spans

pytestmark = pytest.mark.anyio

CALLS: Final = int(os.environ.get("TELEMETRY_CALLS", "600"))
AT_ONCE: Final = 40
CUT_OFF: Final = 6
"""Calls of each kind that run when the process is killed."""
NEVER: Final = {"type": "arguments", "require": "args.text != 'no'", "message": "not here"}


async def test_every_start_has_an_end_or_is_reported_as_unknown(tmp_path: Path) -> None:
    chance = random.Random(7)
    async with start_collector() as collector, start_call_counter() as backend, aiohttp.ClientSession() as session:
        folder = write(tmp_path / "p", _documents(backend.port))
        # record every refused call, however many there are in a minute
        environ = {**environ_of(PEOPLE), **sending_to(collector), "GATEWAY_MAX_REFUSALS": "1000000"}
        with start_gateway_process(folder, tmp_path / "data", env=environ) as gateway:
            ask = send_http(session, gateway.url)
            ana, liz = Caller(ask, ANA.token), Caller(ask, LIZ.token)
            made = await _make_calls(chance, ana, liz, CALLS // 2)
            await collector.until(
                lambda known: len(_ends(known)) == len(known.events_named(names.CALL_STARTED)) == made
            )
            asking = await _start_calls(ana, liz, backend, collector)
            held = len(_ends(collector)) - made
            gateway.stop(signal.SIGKILL)
            cut_off = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(each, aiohttp.ClientError) for each in cut_off)
        assert backend.goes_on is not None
        backend.goes_on.set()
        known = sending_to(collector)
        async with start_gateway(
            folder, tmp_path / "data", people=PEOPLE, environ=known, max_refusals=1_000_000
        ) as again:
            ana, liz = again.caller(ANA), again.caller(LIZ)
            made += held + await _make_calls(chance, ana, liz, CALLS - CALLS // 2, cancels=True)
            stored = await _read_records(again)
            observing = again.running.observing
    for queue in (observing.spans, observing.logs):
        assert queue is not None
        assert not queue.dropped

    _assert_all_reported(collector, stored, lost=len(cut_off))
    _assert_reports_match(collector, stored)
    assert len(stored) >= made
    assert made >= CALLS


def _assert_all_reported(
    collector: Collector, stored: dict[tuple[str | None, str | None], StoredCall], lost: int
) -> None:
    """Starts, ends, unknown outcomes and records are about the same calls, each once; every link has a target."""
    starts = Counter(each.address for each in collector.events_named(names.CALL_STARTED))
    ends = Counter(_ends(collector))
    unknown = Counter(each.address for each in collector.events_named(names.CALL_UNKNOWN))
    assert set(starts.values()) == set(ends.values()) == set(unknown.values()) == {1}
    assert len(starts - ends) == lost
    assert set(starts - ends) <= set(unknown)
    assert set(starts) == set(ends) | set(unknown) == set(stored)
    assert set(unknown) == {address for address, call in stored.items() if call.status == "unknown"}
    spans = {each.address for each in collector.spans}
    assert len(spans) == len(collector.spans)
    lost_parents = set(starts - ends)
    assert {link for each in collector.spans for link in each.links} <= spans
    assert {(each.trace, each.parent) for each in collector.spans if each.parent} <= spans | lost_parents


def _assert_reports_match(collector: Collector, stored: dict[tuple[str | None, str | None], StoredCall]) -> None:
    executions = [each for each in collector.spans if each.name.startswith("execute_tool ") and not each[names.READ]]
    ended = [each for each in executions if not each[names.IS_CANCELLED]]
    assert {each[names.DECISION] for each in ended} == {"allow", "hold", "deny"}
    for each in ended:
        record = stored[each.address]
        assert each[names.CALL_ID] == record.id
        assert each[names.DECISION] == (record.decision or "deny")
        assert each.is_error == (record.is_error and record.decision == "allow")
    assert len(ended) < len(executions)
    requests = {each.address: each for each in collector.spans if each.kind == "SERVER"}
    for each in ended:
        request = requests[each.trace, each.parent]
        is_unavailable = request[names.ERROR_TYPE] == "503"  # a busy machine: the call is refused and did not run
        assert request.is_error == (each.is_error or is_unavailable)


async def _make_calls(chance: random.Random, ana: Caller, liz: Caller, count: int, *, cancels: bool = False) -> int:
    """Make random calls and return how many were answered; only records show whether a cancelled call started."""
    made = 0
    while made < count:
        made += sum(await asyncio.gather(*(_make_call(chance, ana, liz, cancels) for _ in range(AT_ONCE))))
    return made


async def _make_call(chance: random.Random, ana: Caller, liz: Caller, cancels: bool) -> int:
    """Make a call that works, fails, is refused, is invalid, is held and decided, or is cancelled."""
    number = str(chance.random())
    match chance.randrange(8 if cancels else 6):
        case 0:
            await ana.modern_call("desk", "plain", {"text": number})
        case 1:
            await ana.rest_call("desk", "send", {"text": number})
        case 2:
            await ana.rest_call("desk", "gone", {"text": number})
        case 3:
            await ana.modern_call("desk", "plain", {"text": "no"})
        case 4:
            await ana.rest_call("desk", "plain", {"text": 7})
        case 5:
            await _grant_call(ana, liz, number)
            await ana.rest_call("desk", "pay", {"text": number})
            return 2
        case kind:
            asking = asyncio.create_task(ana.rest_call("desk", "plain" if kind == 6 else "send", {"text": number}))
            for _ in range(chance.randrange(40)):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            return 0
    return 1


async def _grant_call(ana: Caller, liz: Caller, text: str) -> None:
    approval = pending_id(await ana.rest_call("desk", "pay", {"text": text}))
    assert (await grant(liz, approval)).status == 200


async def _start_calls(
    ana: Caller, liz: Caller, backend: CallCounter, collector: Collector
) -> list["asyncio.Task[object]"]:
    """Start calls with effects, half of them approved first; the process is killed before they end."""
    for number in range(CUT_OFF):
        await _grant_call(ana, liz, f"cut off {number}")
    backend.goes_on = asyncio.Event()
    ends = len(backend.requests) + 2 * CUT_OFF
    asking: list[asyncio.Task[object]] = [
        asyncio.create_task(ana.rest_call("desk", tool, {"text": f"cut off {number}"}))
        for tool in ("send", "pay")
        for number in range(CUT_OFF)
    ]
    started = names.CALL_STARTED
    await collector.until(lambda known: len(known.events_named(started)) == len(_ends(known)) + 2 * CUT_OFF)
    while len(backend.requests) < ends:
        await asyncio.sleep(0.01)
    return asking


def _ends(collector: Collector) -> list[tuple[str, str]]:
    return [each.address for each in collector.spans if each.name.startswith("execute_tool ") and not each[names.READ]]


async def _read_records(gateway: GatewayUnderTest) -> dict[tuple[str | None, str | None], StoredCall]:
    found: list[StoredCall] = []
    cursor = None
    while True:
        page, cursor = await gateway.running.service.list_calls(CallFilter(), limit=1000, before=cursor)
        found += page
        if cursor is None:
            break
    by_span = {(each.trace_id, each.span_id): each for each in found}
    assert len(by_span) == len(found)
    return by_span


def _documents(port: int) -> list[Document]:
    gone = http_tool("gone", port)
    backend = {"type": "http", "method": "GET", "url": "http://127.0.0.1:9/nobody"}
    unreachable = {**gone, "spec": {**gone["spec"], "backend": backend}}
    rules = [rule("money", HELD, tools=("pay",)), rule("never", NEVER, tools=("plain",))]
    return wait_for_spans(
        approval_client(port, tools=[unreachable, http_tool("send", port, flags=["writes"])], rules=rules)
    )
