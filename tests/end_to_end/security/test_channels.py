"""Channels between workers and between gateways: outsiders can use none of them.

Real processes on loopback. Requests come from 127.0.0.2, to distinguish the caller's address from that of a forwarding
process.
"""

import asyncio
import json
import os
import re
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import psycopg
import pytest

from gateway.app.cluster.peer_router import derive_peer_id
from gateway.server.http.peer_handshake import HELLO_SIZE, MAGIC
from tests.support.audit_log import entries
from tests.support.gateways.forkserver import ForkServer, GatewayFork
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.projects import environ_of, start_call_counter
from tests.support.gateways.replicas import forked_replicas, write_replica_project
from tests.support.servers.orders_service import PROJECT, orders_service

pytestmark = pytest.mark.anyio

FROM = "127.0.0.2"
INNER = ("reload/lead", "reload/prepare", "reload/word", "reload/served", "metrics", "", "reload/", "x")
LEAD = b'{"expected":null,"why":"asked"}'
CONTROL = MAGIC + b"\x02"
CALL = "/v1/catalogues/desk/tools/plain/call"


async def raw(gateway: GatewayFork, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Send a request with its target unchanged; status 0 means no answer."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(FROM, 0))
    all_headers = {"host": "localhost", "connection": "close", "content-type": "application/json", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in all_headers.items()]
    head = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, f"content-length: {len(body)}", "", ""])
    try:
        writer.write(head.encode("latin-1") + body)
        answer = await reader.read()
    except ConnectionError:
        return 0, b""
    finally:
        writer.close()
    status = re.match(rb"HTTP/1.1 (\d{3}) ", answer)
    return int(status[1]) if status else 0, answer.partition(b"\r\n\r\n")[2]


def bearer() -> str:
    return f"Bearer {ANA.token}"


class Trap:
    """A listener that counts connections and the bytes of each. Connections from workers are counted separately."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.controls = 0
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = await reader.read(65536)
        if heard[: len(CONTROL)] == CONTROL:
            self.controls += 1
        else:
            self.sizes.append(len(heard))
        writer.close()


@asynccontextmanager
async def trap(path: Path | None = None) -> AsyncIterator[Trap]:
    found = Trap()
    opening: Any = asyncio.start_server(found.handle, "127.0.0.1", 0)
    if path is not None:
        opening.close()
        opening = asyncio.start_unix_server(found.handle, str(path))
    async with await opening as server:
        found.port = 0 if path else server.sockets[0].getsockname()[1]
        yield found


@asynccontextmanager
async def two_workers(forks: ForkServer, tmp_path: Path) -> AsyncIterator[tuple[GatewayFork, Path]]:
    async with start_call_counter() as backend:
        project = write(tmp_path / "p", approval_client(backend.port))
        env = {**environ_of(PEOPLE), "GATEWAY_DATA_DIR": str(tmp_path / "data")}
        gateway = await asyncio.to_thread(forks.start, project, tmp_path / "data", env=env, options=("--workers", "2"))
        try:
            yield gateway, project
        finally:
            await asyncio.to_thread(gateway.stop)


def workers_of(gateway: GatewayFork) -> list[int]:
    return [int(each) for each in Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text().split()]


def order_of(worker: int) -> Any:
    return json.loads(Path(f"/proc/{worker}/cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2])


async def revision_of(gateway: GatewayFork) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin_url}/readyz") as answer:
        return str((await answer.json())["revision"])


async def test_workers_are_controlled_by_no_client(forks: ForkServer, tmp_path: Path) -> None:
    async with two_workers(forks, tmp_path) as (gateway, project):
        before = await revision_of(gateway)
        documents = project / "configs" / "all.yaml"
        documents.write_text(documents.read_text("utf-8").replace("plain.", "plain, changed."), encoding="utf-8")
        answers = {}
        for inner in INNER:
            for target in (f"/.gateway/{inner}", f"*@x/.gateway/{inner}", f"//x/.gateway/{inner}"):
                for session in ("0.x", "1.x", ""):
                    more: dict[str, Any] = {"mcp_session_id": session} if session else {}
                    answers[target, session] = [
                        await raw(gateway, "POST", target, LEAD, **more),
                        await raw(gateway, "GET", target, **more),
                    ]
        with_credential = {
            target: [await raw(gateway, "POST", target, LEAD, authorization=bearer()) for _ in range(4)]
            for target in ("/.gateway/reload/lead", "/.gateway/metrics", "/.nowhere/metrics")
        }
        after = await revision_of(gateway)

    assert {status for each in answers.values() for status, _ in each} <= {400, 401}
    assert before == after
    unknown = with_credential["/.nowhere/metrics"][0]
    assert unknown[0] == 404
    assert all(each == unknown for found in with_credential.values() for each in found)


async def test_workers_sockets_are_private_and_want_proof(forks: ForkServer, tmp_path: Path) -> None:
    async with two_workers(forks, tmp_path) as (gateway, _):
        workers = workers_of(gateway)
        folder = Path(order_of(workers[0])["folder"])
        modes = [stat.S_IMODE(each.stat().st_mode) for each in (folder, folder / "0.sock", folder / "1.sock")]
        answers = []
        for path in ("/.gateway/reload/served", "/.gateway/metrics", "/readyz"):
            for index in (0, 1):
                reader, writer = await asyncio.open_unix_connection(str(folder / f"{index}.sock"))
                writer.write(f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{{}}".encode())
                try:
                    answers.append(await reader.read())
                except ConnectionError:
                    answers.append(b"")
                writer.close()
        strangers = [pipe for worker in workers for pipe in _find_inherited(worker, order_of(worker)["secret"])]

    assert modes == [0o700, 0o600, 0o600]
    assert answers == [b""] * 6
    assert strangers == []


def _find_inherited(worker: int, secret: int) -> list[str]:
    """Return the descriptor the secret was read from, if it is a pipe that is still open."""
    try:
        found = os.readlink(f"/proc/{worker}/fd/{secret}")
    except FileNotFoundError:
        return []
    return [found] if found.startswith("pipe:") and _is_read_only_and_inheritable(worker, secret) else []


def _is_read_only_and_inheritable(worker: int, descriptor: int) -> bool:
    flags = int(re.search(r"flags:\s+(\d+)", Path(f"/proc/{worker}/fdinfo/{descriptor}").read_text())[1], 8)  # type: ignore[index]  # every descriptor has flags
    return not flags & os.O_CLOEXEC


async def test_worker_is_asked_only_for_callers_who_were_let_in(forks: ForkServer, tmp_path: Path) -> None:
    """The trap replaces a worker and counts every request forwarded to it."""
    async with two_workers(forks, tmp_path) as (gateway, _):
        folder = Path(order_of(workers_of(gateway)[0])["folder"])
        for index in (0, 1):
            (folder / f"{index}.sock").rename(folder / f"{index}.moved")
        async with trap(folder / "0.sock") as first, trap(folder / "1.sock") as second:
            strangers = [
                await raw(gateway, method, target, b"{}", mcp_session_id=f"{index}.x", **more)
                for index in (0, 1)
                for method, target in (
                    *(("POST", "/desk/mcp"), ("GET", "/v1/docs"), ("GET", "/readyz"), ("GET", "/v1/turns/t/events")),
                    *(("GET", "/.well-known/oauth-protected-resource"), ("POST", "/v1/turns/t/calls")),
                    *(("GET", "*@127.0.0.1:1/x"), ("OPTIONS", "*"), ("GET", "http://127.0.0.1:1/")),
                )
                for more in ({}, {"authorization": "Bearer wrong"})
            ]
            state = b'{"params":{"requestState":"w%d.sealed"}}'
            strangers += [await raw(gateway, "POST", "/desk/mcp", state % index) for index in (0, 1)]
            untouched, controls = [*first.sizes, *second.sizes], first.controls + second.controls
            known = [
                await raw(gateway, "POST", CALL, b"{}", mcp_session_id=f"{index}.x", authorization=bearer())
                for index in (0, 1)
                for _ in range(8)
            ]
            touched = [*first.sizes, *second.sizes]

    assert untouched == []
    assert controls <= 2, "each worker asks the other once what it serves, when it is up"
    assert {status for status, _ in strangers} <= {200, 204, 400, 401, 404}
    assert touched
    assert set(touched) == {HELLO_SIZE}
    assert sum(status == 503 and b"E_OVERLOADED" in body for status, body in known) == len(touched)


async def test_decision_log_has_the_caller_whichever_worker_answers(forks: ForkServer, tmp_path: Path) -> None:
    async with two_workers(forks, tmp_path) as (gateway, _):
        answers = [
            await raw(gateway, "POST", CALL, b'{"arguments":{"text":"x"}}', authorization=bearer(), **more)
            for more in ({"mcp_session_id": "0.x"}, {"mcp_session_id": "1.x"}, {})
            for more in (more, {**more, "gateway_caller": "192.0.2.1 80", "x_forwarded_for": "192.0.2.1"})
            for _ in range(4)
        ]

    assert [status for status, _ in answers] == [200] * 24, answers
    found = [each["caller"] for each in entries(tmp_path / "data" / "gateway.db") if each["event"] == "call-settled"]
    assert [each["client"] for each in found] == [{"address": FROM}] * 24


async def test_workers_that_pass_on_to_each_other_under_load_do_not_wait_for_each_other(
    forks: ForkServer, tmp_path: Path
) -> None:
    """Each worker has one slot, and every request is for the other worker."""
    room = {"GATEWAY_MAX_REQUESTS": "1", "GATEWAY_MAX_QUEUE": "100", "GATEWAY_MAX_WAIT": "300"}
    path = "/v1/catalogues/shop/tools/order_place/call"
    async with orders_service() as orders:
        env = {"ORDERS_URL": orders.url, **room}
        gateway = await asyncio.to_thread(forks.start, PROJECT, tmp_path, env=env, options=("--workers", "2"))
        try:
            async with asyncio.timeout(120):
                answers = await asyncio.gather(
                    *(
                        raw(
                            gateway,
                            "POST",
                            path,
                            b'{"arguments":{"order":"o%d"}}' % each,
                            mcp_session_id=f"{each % 2}.x",
                        )
                        for each in range(40)
                    )
                )
        finally:
            await asyncio.to_thread(gateway.stop)

    assert [status for status, _ in answers] == [200] * 40
    assert orders.executions == {f"o{each}": 1 for each in range(40)}


async def test_gateway_asks_only_gateways_and_only_for_callers_who_were_let_in(
    forks: ForkServer, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    address = new_database()
    random = Random(11)
    async with start_call_counter() as backend, trap() as false_gateway, trap() as inside:
        project = write_replica_project(tmp_path, backend)
        with forked_replicas(forks, project, tmp_path / "data", address, count=2) as gateways:
            where = f"127.0.0.1:{inside.port}"
            false_url = f"http://127.0.0.1:{false_gateway.port}"
            enlist(address, false_url)
            known = await addresses(address, 3)
            owners = [derive_peer_id(each) for each in known]
            strangers = []
            for owner in owners:
                state = b'{"params":{"requestState":"%s.sealed"}}' % owner.encode()
                strangers.append(await raw(gateways[0], "POST", "/desk/mcp", state))
                for target in hostile_targets(random, where, 40):
                    more: dict[str, Any] = random.choice(
                        [{}, {"authorization": "Bearer wrong"}, {"gateway_passed_on": "1"}]
                    )
                    strangers.append(await raw(gateways[0], "GET", target, mcp_session_id=f"{owner}.x", **more))
            untouched = [*false_gateway.sizes, *inside.sizes]
            others = [derive_peer_id(each) for each in known if each != false_url]
            called = [
                await raw(
                    *(gateways[0], "POST", CALL, b'{"arguments":{"text":"x"}}'),
                    mcp_session_id=f"{owner}.x",
                    authorization=bearer(),
                    gateway_caller="192.0.2.1 80",
                )
                for owner in others
            ]
            let_in = [
                await raw(
                    gateways[0], "GET", target, mcp_session_id=f"{derive_peer_id(false_url)}.x", authorization=bearer()
                )
                for target in ("/desk/mcp", *hostile_targets(random, where, 40))
            ]
            gone = await raw(gateways[0], "POST", CALL, b"{}", mcp_session_id="0" * 12 + ".x", authorization=bearer())
            direct = [await send_plain_http(each) for each in known if each != false_url]
        logged = callers(address)

    assert untouched == []
    assert {status for status, _ in strangers} <= {400, 401}
    assert [status for status, _ in called] == [200, 200]
    assert [each["client"] for each in logged] == [{"address": FROM}] * 2
    assert let_in[0][0] == 503
    assert {status for status, _ in let_in} <= {400, 503}
    assert false_gateway.sizes
    assert set(false_gateway.sizes) == {HELLO_SIZE}
    assert inside.sizes == []
    assert (gone[0], b"E_SESSION_GONE" in gone[1]) == (404, True)
    assert direct == [b"", b""]


def hostile_targets(random: Random, where: str, count: int) -> list[str]:
    starts = (
        "*@",
        "@",
        "http://",
        "https://",
        "//",
        "/\\",
        "*",
        "/@",
        "/..//",
        "/%2f%2f",
        "/x@",
        "/?u=http://",
        "*:80@",
    )
    return [
        random.choice(starts)
        + where
        + "/latest/meta-data"
        + "".join(random.choices("/@:?*.%a;=", k=random.randrange(4)))
        for _ in range(count)
    ]


def enlist(address: str, url: str) -> None:
    """Register a gateway that does not exist in the database."""
    statement = "INSERT INTO leases (id, node, until, address) VALUES ('trap', '', clock_timestamp() + '1 hour', %s)"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(statement, (url,))


async def addresses(address: str, count: int) -> list[str]:
    async with asyncio.timeout(60):
        while True:
            with psycopg.connect(address, autocommit=True) as connection:
                found = connection.execute("SELECT DISTINCT address FROM leases WHERE address IS NOT NULL").fetchall()
            if len(found) == count:
                return sorted(each for (each,) in found)
            await asyncio.sleep(0.05)


def callers(address: str) -> list[Any]:
    with psycopg.connect(address, autocommit=True) as connection:
        rows = connection.execute("SELECT body FROM audit ORDER BY at").fetchall()
    bodies = [each if isinstance(each, dict) else json.loads(each) for (each,) in rows]
    return [each["caller"] for each in bodies if each["event"] == "call-settled"]


async def send_plain_http(url: str) -> bytes:
    """Return the answer of the listener for other gateways to plain HTTP."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /readyz HTTP/1.1\r\nhost: localhost\r\nauthorization: {bearer()}\r\n\r\n".encode())
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
