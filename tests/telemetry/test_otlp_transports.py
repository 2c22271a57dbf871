"""The route of OTLP: straight to the collector, or through the proxy that the environment names."""

import asyncio

import pytest

from gateway.http_client import find_proxy
from gateway.telemetry.export.otlp_transports import OtlpHttp
from gateway.telemetry.settings import OtlpExporterSettings

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("besides", "line"), [("", "POST http://collector.example"), ("collector.example", None)])
async def test_proxy_of_the_environment_is_used_unless_it_is_bypassed(
    monkeypatch: pytest.MonkeyPatch, besides: str, line: str | None
) -> None:
    asked: list[str] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", besides)
    sending = OtlpHttp(OtlpExporterSettings("http", "http://collector.example:4318/v1/traces"))
    assert (find_proxy("http://collector.example:4318/v1/traces") is not None) is (line is not None)
    if line is not None:
        assert await sending.send("traces", b"") == 0
        assert asked[0].startswith(line)
    await sending.close()
    server.close()
    await server.wait_closed()
