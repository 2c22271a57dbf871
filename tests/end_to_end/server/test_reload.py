"""A new revision without a restart: no call fails, no revisions are mixed, and an invalid revision changes nothing.

`RELOADS` is the number of reloads under load; the suite does thirty.
"""

import asyncio
import json
import os
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest

from gateway.identity.credentials import new_api_token
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.reload_project import (
    reload,
    revisions_in_the_log,
    revisions_of_calls,
    start_reload_gateway,
    status_of,
    write_broken_version,
    write_version,
)
from tests.support.paths import ROOT
from tests.support.servers.orders_service import MCP_VERSION

pytestmark = pytest.mark.anyio

CALLERS = 16
RELOADS = int(os.environ.get("RELOADS", "30"))
BROKEN = [number % 3 == RELOADS % 3 for number in range(1, RELOADS + 1)]
"""Every third reload is broken, and always the last one."""


async def test_reloads_under_load_fail_no_call_and_mix_no_revisions(tmp_path: Path, forks: ForkServer) -> None:
    async with start_reload_gateway(forks, tmp_path) as (gateway, project, shop, _):
        first = (await status_of(gateway))["revision"]
        over = asyncio.Event()
        answered_by: dict[str, str] = {}
        failed: list[Any] = []

        async def call(caller: int) -> None:
            number = 0
            while not over.is_set():
                number += 1
                ask = shop.rest if (caller + number) % 2 else shop.mcp
                answer = await ask("order_place", {"order": f"{caller}-{number}"})
                text = json.dumps(answer.body)
                if not answer.is_settled or "placed v" not in text:
                    failed.append(answer)
                    continue
                assert answer.call_id is not None
                answered_by[answer.call_id] = text.split("placed v")[1].split("-")[0]

        began = monotonic()
        callers = [asyncio.create_task(call(each)) for each in range(CALLERS)]
        outcomes: list[tuple[int, str, str]] = []
        for number, is_broken in enumerate(BROKEN, 1):
            if is_broken:
                write_broken_version(project)
            else:
                write_version(project, number)
            status, body = await reload(gateway)
            outcomes.append((status, body["outcome"], body["revision"]))
        over.set()
        await asyncio.gather(*callers)
        took = monotonic() - began
        print(
            f"{RELOADS} reloads under {len(answered_by) / took:.0f} calls/s in {took:.1f} s: {len(failed)} calls failed"
        )
        last = await status_of(gateway)

    assert failed == []
    assert [each[:2] for each in outcomes] == [(422, "refused") if each else (200, "published") for each in BROKEN]
    revisions = [first, *(each[2] for each in outcomes)]
    assert [before == after for before, after in pairwise(revisions)] == BROKEN
    assert len(set(revisions)) == 1 + BROKEN.count(False)
    kept = revisions_of_calls(tmp_path)
    versions: defaultdict[str, set[str]] = defaultdict(set)
    for call_id, version in answered_by.items():
        versions[kept[call_id]].add(version)
    assert all(len(each) == 1 for each in versions.values()), versions
    assert len(versions) > RELOADS / 3
    logged = revisions_in_the_log(tmp_path)
    assert all(logged[call_id] == {kept[call_id]} for call_id in answered_by)
    assert last["revision"] == outcomes[-1][2]
    assert last["lastReload"]["outcome"] == "refused"
    assert "tools.yaml" in last["lastReload"]["problems"][0]
    assert len(answered_by) > 5 * RELOADS


async def test_what_is_served_is_named_and_only_then_replaced(tmp_path: Path, forks: ForkServer) -> None:
    async with start_reload_gateway(forks, tmp_path) as (gateway, project, _, _):
        first = await status_of(gateway)
        write_version(project, 1)
        elsewhere, problem = await reload(gateway, {"if-match": '"0123456789ab"'})
        twice, _ = await reload(gateway, {"if-match": '""'})
        status, body = await reload(gateway, {"if-match": f'"{first["revision"][:12]}"'})
        again, same = await reload(gateway, {"if-match": "*"})
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{gateway.admin_url}/admin/reload") as answer:
                wrong = answer.status
            async with session.get(f"{gateway.admin_url}/metrics") as answer:
                counted = [line for line in (await answer.text()).splitlines() if "config_reloads_total{" in line]

    assert (elsewhere, problem["code"], twice) == (412, "E_ANOTHER_REVISION", 400)
    assert first["lastReload"] is None
    assert (status, body["outcome"], body["before"]) == (200, "published", first["revision"])
    assert body["revision"] != first["revision"]
    assert (again, same["outcome"], same["revision"]) == (200, "unchanged", body["revision"])
    assert wrong == 405
    assert counted == [
        'gateway_config_reloads_total{gateway_outcome="published"} 1',
        'gateway_config_reloads_total{gateway_outcome="refused"} 0',
        'gateway_config_reloads_total{gateway_outcome="unchanged"} 1',
    ]


async def test_who_may_not_administer_does_not_reload(tmp_path: Path, forks: ForkServer) -> None:
    gateway = await asyncio.to_thread(forks.start, ROOT / "tests" / "projects" / "small", tmp_path, env={})
    status, body = await reload(gateway)
    await asyncio.to_thread(gateway.stop)

    assert (status, body["code"]) == (403, "E_NOT_PERMITTED")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param(("gateway.yaml", "retain: {calls: 2d}", "retain: {calls: 3d}"), "the Storage", id="storage"),
        pytest.param(
            ("gateway.yaml", "  storage: main", "  storage: main\n  audit: {key: {fromEnv: NOBODY}}"),
            "NOBODY",
            id="a secret that is not there",
        ),
        pytest.param(("gateway.yaml", 'tools: ["*"]', "tools: [nothing]"), "gateway.yaml:", id="a broken reference"),
    ],
)
async def test_what_cannot_be_served_is_refused_with_its_reason(
    change: tuple[str, str, str], words: str, tmp_path: Path, forks: ForkServer
) -> None:
    file, old, new = change
    async with start_reload_gateway(forks, tmp_path) as (gateway, project, shop, _):
        path = project / "configs" / file
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(old, new), encoding="utf-8")
        status, body = await reload(gateway)
        still = await shop.rest("order_place", {"order": "a"})
        async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/readyz") as answer:
            ready = answer.status, await answer.json()
        path.write_text(text, encoding="utf-8")
        mended = await reload(gateway)

    assert text.replace(old, new) != text
    assert (status, body["code"], body["outcome"]) == (422, "E_RELOAD_REFUSED", "refused")
    assert words in " ".join(body["problems"])
    assert still.status == 200
    assert ready[0] == 200
    assert "the last reload was refused" in ready[1]["problems"][0]
    assert (mended[0], mended[1]["outcome"]) == (200, "unchanged")


async def test_policy_tests_are_asked_before_anything_changes(tmp_path: Path, forks: ForkServer) -> None:
    async with start_reload_gateway(forks, tmp_path) as (gateway, project, shop, _):
        settings = project / "configs" / "gateway.yaml"
        text = settings.read_text(encoding="utf-8")
        settings.write_text(
            text.replace("  storage: main\n", "  storage: main\n  reload: {runPolicyTests: true}\n"), encoding="utf-8"
        )
        (project / "policies" / "tests").mkdir()
        (project / "policies" / "tests" / "shop.yaml").write_text(CASES, encoding="utf-8")
        first = await reload(gateway)
        policy = project / "policies" / "policy.csv"
        policy.write_text(policy.read_text(encoding="utf-8").replace("discover|invoke", "discover"), encoding="utf-8")
        second = await reload(gateway)
        still = await shop.rest("order_place", {"order": "a"})

    assert (first[0], first[1]["outcome"]) == (200, "published")
    assert second[0] == 422
    assert second[1]["problems"] == ["policy test shop: a clerk places orders: expected allow, got deny"]
    assert still.status == 200


async def test_tokens_come_and_go_with_a_reload(tmp_path: Path, forks: ForkServer) -> None:
    tokens = {name: new_api_token() for name in ("old", "new")}
    env = {f"{name.upper()}_SHA256": digest for name, (_, digest) in tokens.items()}
    async with start_reload_gateway(forks, tmp_path, env=env) as (gateway, project, _, _):
        documents = project / "configs" / "gateway.yaml"
        text = documents.read_text(encoding="utf-8")
        found = {}
        for step, known in (("one", ["old"]), ("both", ["old", "new"]), ("other", ["new"])):
            provider = TOKENS + "".join(TOKEN.format(name=each, variable=f"{each.upper()}_SHA256") for each in known)
            documents.write_text(f"{text.replace('identity: [local]', 'identity: [local, listed]')}{provider}")
            assert (await reload(gateway))[1]["outcome"] == "published"
            found[step] = {name: await ask_as(gateway, token) for name, (token, _) in tokens.items()}
        documents.write_text(text, encoding="utf-8")
        assert (await reload(gateway))[1]["outcome"] == "published"
        found["none"] = {name: await ask_as(gateway, token) for name, (token, _) in tokens.items()}

    assert found == {
        "one": {"old": 200, "new": 401},
        "both": {"old": 200, "new": 200},
        "other": {"old": 401, "new": 200},
        "none": {"old": 401, "new": 401},
    }


async def ask_as(gateway: GatewayFork, token: str) -> int:
    headers = {"authorization": f"Bearer {token}"}
    url = f"{gateway.url}/v1/catalogues/shop/tools"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status


TOKENS = """
---
apiVersion: gateway/v1
kind: IdentityProvider
metadata: {name: listed, owner: team-platform}
spec:
  type: token
  tokens:
"""
TOKEN = """\
    - {{subject: "agent:{name}", roles: [role:clerk], sha256: {{fromEnv: {variable}}}, expires: "2100-01-01"}}
"""


async def test_calls_that_run_end_on_what_they_began_with(tmp_path: Path, forks: ForkServer) -> None:
    async with start_reload_gateway(forks, tmp_path) as (gateway, project, shop, orders):
        first = (await status_of(gateway))["revision"]
        waiting = asyncio.create_task(shop.rest("order_ship", {"order": "slow"}))
        await orders.arrived("slow")
        tools = project / "configs" / "tools.yaml"
        tools.write_text(tools.read_text(encoding="utf-8").replace("order_ship", "order_send"), encoding="utf-8")
        status, body = await reload(gateway)
        gone = await shop.rest("order_ship", {"order": "b"})
        orders.release("slow")
        slow = await waiting
        serving = await status_of(gateway)

    assert (status, body["outcome"]) == (200, "published")
    assert gone.status == 404
    assert slow.status == 200
    assert "let go slow" in json.dumps(slow.body)
    assert slow.call_id is not None
    assert revisions_of_calls(tmp_path)[slow.call_id] == first
    assert revisions_in_the_log(tmp_path)[slow.call_id] == {first}
    assert serving["draining"] == 1


async def test_clients_that_listen_hear_that_the_list_changed(tmp_path: Path, forks: ForkServer) -> None:
    prefix = "io.modelcontextprotocol/"
    meta = {f"{prefix}protocolVersion": MCP_VERSION, f"{prefix}clientCapabilities": {}}
    params = {"notifications": {"toolsListChanged": True}, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    headers = {"mcp-protocol-version": MCP_VERSION, "mcp-method": "subscriptions/listen"}
    headers["accept"] = "application/json, text/event-stream"
    async with (
        start_reload_gateway(forks, tmp_path) as (gateway, project, _, _),
        aiohttp.ClientSession() as session,
        session.post(f"{gateway.url}/shop/mcp", json=message, headers=headers) as stream,
    ):
        heard = await heard_until(stream, "acknowledged")
        write_version(project, 1)
        await reload(gateway)
        heard += await heard_until(stream, "list_changed")

    assert "notifications/tools/list_changed" in heard


async def heard_until(stream: aiohttp.ClientResponse, word: str) -> str:
    heard = ""
    async with asyncio.timeout(30):
        while word not in heard:
            heard += (await stream.content.readline()).decode()
    return heard


CASES = """\
apiVersion: gateway/v1
kind: PolicyTest
metadata: {name: shop, owner: team-security}
spec:
  given: {catalogue: shop, at: "2026-11-16T10:00:00Z"}
  cases:
    - name: a clerk places orders
      as: {subject: user:you}
      call: order_place
      with: {order: a}
      expect: {decision: allow}
"""
