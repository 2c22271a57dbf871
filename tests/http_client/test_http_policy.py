"""Every user of the HTTP client refuses redirects and responses without bounds, through the same two clients."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.app import project_source
from gateway.app.bundle import InvalidBundle
from gateway.app.cluster import proxy
from gateway.app.cluster.worker_router import WorkerRouter
from gateway.backends import OAuthCredentials, TokenGrant
from gateway.http_client import HttpConnections, HttpPolicy, HttpSession, ResponseTooLarge, send_blocking
from gateway.http_client.allowed_addresses import AddressNotAllowed
from gateway.model import BackendError
from gateway.server.http.asgi import json_response
from gateway.server.http.peer_handshake import ChannelKey
from gateway.telemetry.export.delivery import ExportFailed
from gateway.telemetry.export.otlp_transports import OtlpHttp
from gateway.telemetry.settings import OtlpExporterSettings
from tests.backends.loopback_service import Service, plain, start_service
from tests.server.http.peer_channel import door_at

pytestmark = pytest.mark.anyio

SMALL = HttpPolicy(max_body=10)
KEY = ChannelKey(bytes(32))


@asynccontextmanager
async def opened(policy: HttpPolicy) -> AsyncIterator[HttpSession]:
    session = HttpSession(policy)
    try:
        yield session
    finally:
        await session.close()


@asynccontextmanager
async def redirecting() -> AsyncIterator[tuple[Service, Service]]:
    """Start a service that redirects to another one, which must not be asked."""
    async with start_service(plain(b"{}")) as target:
        async with start_service(plain(b"", "307 Temporary Redirect", f"Location: {target.url}/")) as service:
            yield service, target
        assert target.received == []


async def inside(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def test_session_returns_a_redirect_and_keeps_no_cookie() -> None:
    async with redirecting() as (service, _), opened(SMALL) as session:
        assert (await session.send("GET", service.url)).status == 307
    async with start_service(plain(b"", "200 OK", "Set-Cookie: a=b; Path=/")) as service, opened(SMALL) as session:
        for _ in range(2):
            async with await session.send("GET", service.url):
                pass
        assert [each.headers.get("cookie") for each in service.received] == [None, None]
        assert service.received[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("body", [b"x" * 10, b"x" * 11])
async def test_session_reads_no_more_than_the_policy_allows(body: bytes) -> None:
    async with start_service(plain(body)) as service, opened(SMALL) as session:
        response = await session.send("GET", service.url)
        if len(body) == 10:
            assert await session.read(response) == body
        else:
            with pytest.raises(ResponseTooLarge):
                await session.read(response)


async def test_session_refuses_headers_of_any_length() -> None:
    async with start_service(plain(b"", "200 OK", f"X-Long: {'x' * 9000}")) as service, opened(SMALL) as session:
        with pytest.raises(aiohttp.ClientError):
            await session.send("GET", service.url)


async def test_session_waits_for_headers_as_long_as_the_policy_says() -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    policy = HttpPolicy(connect=0.05, answer=0.05)
    async with start_service(silent) as service, opened(policy) as session:
        with pytest.raises(TimeoutError):
            await session.send("GET", service.url)


@pytest.mark.parametrize(("networks", "is_reached"), [(None, True), ((), False)])
async def test_policy_decides_which_addresses_are_reached(networks: tuple[()] | None, is_reached: bool) -> None:
    policy = HttpPolicy(networks=networks, lookup=inside)
    async with start_service(plain(b"ok")) as service, opened(policy) as session:
        url = f"http://service.example:{service.port}/"
        if is_reached:
            assert (await session.send("GET", url)).status == 200
        else:
            with pytest.raises(aiohttp.ClientConnectorError) as refused:
                await session.send("GET", url)
            assert isinstance(refused.value.os_error, AddressNotAllowed)


async def test_blocking_client_has_the_same_rules() -> None:
    async with redirecting() as (service, _):
        assert await asyncio.to_thread(send_blocking, service.url, SMALL) == (307, b"")
    async with start_service(plain(b"x" * 10), plain(b"x" * 11)) as service:
        assert await asyncio.to_thread(send_blocking, service.url, SMALL, body=b"{}") == (200, b"x" * 10)
        with pytest.raises(ResponseTooLarge):
            await asyncio.to_thread(send_blocking, service.url, SMALL)
        assert service.received[0].headers["user-agent"] == "agent-gateway"


def test_blocking_client_opens_no_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("secret")

    with pytest.raises(OSError, match="unknown url type"):
        send_blocking((tmp_path / "file").as_uri(), SMALL)


async def test_bundle_is_not_fetched_over_a_redirect_or_without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async with redirecting() as (service, _):
        with pytest.raises(InvalidBundle, match="responded with 307"):
            await asyncio.to_thread(project_source.fetch_bundle, service.url)
    monkeypatch.setattr(project_source, "_POLICY", SMALL)
    async with start_service(plain(b"x" * 11)) as service:
        with pytest.raises(InvalidBundle, match="ResponseTooLarge"):
            await asyncio.to_thread(project_source.fetch_bundle, service.url)


async def test_telemetry_is_not_sent_to_the_target_of_a_redirect() -> None:
    async with redirecting() as (service, _):
        exporter = OtlpHttp(OtlpExporterSettings("http", f"{service.url}/v1/traces"))
        with pytest.raises(ExportFailed, match="http_307"):
            await exporter.send("traces", b"")
        await exporter.close()


async def test_token_is_not_taken_from_a_redirect_or_from_a_response_without_bounds() -> None:
    connections = HttpConnections()
    async with redirecting() as (service, _):
        with pytest.raises(BackendError, match="grants no token"):
            await OAuthCredentials(TokenGrant(service.url, "id", lambda: "secret")).headers(None, connections)
    async with start_service(plain(b" " * (65 << 10))) as service:
        with pytest.raises(BackendError, match="the answer has more than 65536 bytes"):
            await OAuthCredentials(TokenGrant(service.url, "id", lambda: "secret")).headers(None, connections)
    await connections.close()


async def test_answer_of_another_worker_is_bounded_and_redirects_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def other(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        answer = {
            "/small": json_response({}),
            "/large": json_response({"a": "x" * 20}),
            "/moved": json_response({}, status=307, headers={b"location": b"/small"}),
        }
        await answer[scope["path"]](scope, receive, send)

    monkeypatch.setattr(proxy, "_POLICY", HttpPolicy(answer=None, idle=None, max_body=10, headers=None))
    here = WorkerRouter(other, index=0, count=2, folder=tmp_path, key=KEY)
    async with door_at(KEY, "worker-1", {"control": other}, path=str(tmp_path / "1.sock")):
        answers = [await here._ask_others(path) for path in ("/small", "/large", "/moved")]
    await here.close()

    assert answers == [{1: b"{}"}, {}, {}]
    assert asked == ["/small", "/large", "/moved"]
