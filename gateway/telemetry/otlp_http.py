"""OTLP over HTTP: one request per batch. Of what a collector answers little is read, and that not for long."""

import asyncio
import gzip
import ssl
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from gateway.telemetry.exporting import Unsent
from gateway.telemetry.rejections import rejected
from gateway.telemetry.settings import Otlp, Signal, TelemetryUnusable

LARGEST_ANSWER: Final = 64 << 10
_AGAIN: Final = frozenset({429, 502, 503, 504})


class OtlpHttp:
    """`certificate` and the client's own are files; without them the system's authorities count."""

    def __init__(self, told: Otlp) -> None:
        self._told = told
        self._tls = _tls(told)
        self._proxy = _proxy_of(told.endpoint)
        self._session: aiohttp.ClientSession | None = None

    async def send(self, signal: Signal, payload: bytes) -> int:
        headers = {"user-agent": "agent-gateway", **self._told.headers(), "content-type": "application/x-protobuf"}
        if self._told.compression == "gzip":
            payload = await asyncio.to_thread(gzip.compress, payload, 5)
            headers["content-encoding"] = "gzip"
        try:
            async with asyncio.timeout(self._told.timeout):
                return await self._posted(signal, payload, headers)
        except TimeoutError as error:
            raise Unsent("timeout", again=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unsent("unreachable", again=True) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _posted(self, signal: Signal, payload: bytes, headers: dict[str, str]) -> int:
        async with self._opened().post(
            self._told.endpoint, data=payload, headers=headers, allow_redirects=False, ssl=self._tls, proxy=self._proxy
        ) as answer:
            body = b""
            while len(body) <= LARGEST_ANSWER and (chunk := await answer.content.read(LARGEST_ANSWER)):
                body += chunk
            if len(body) > LARGEST_ANSWER:
                answer.close()
                body = b""
            if 200 <= answer.status < 300:
                return rejected(signal, body)
            again = answer.status in _AGAIN
            raise Unsent(f"http_{answer.status}", again=again, after=_seconds(answer.headers.get("Retry-After")))

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=2),
                auto_decompress=False,
                read_bufsize=LARGEST_ANSWER,
            )
        return self._session


def _proxy_of(endpoint: str) -> str | None:
    """As the environment says. Asked once: the library would ask in a thread, for every request."""
    url = urlsplit(endpoint)
    return None if proxy_bypass(url.hostname or "") else getproxies().get(url.scheme)


def _seconds(text: str | None) -> float | None:
    """A date is as good as nothing: it would need the same clock."""
    return (
        min(float(text), 30.0) if text is not None and text.isascii() and text.isdecimal() and len(text) < 6 else None
    )


def _tls(told: Otlp) -> ssl.SSLContext | bool:
    if told.certificate is None and told.client_certificate is None:
        return True
    try:
        context = ssl.create_default_context(cafile=told.certificate)
        if told.client_certificate is not None:
            context.load_cert_chain(told.client_certificate, told.client_key)
    except (OSError, ssl.SSLError) as error:
        raise TelemetryUnusable(
            "the certificates for the collector cannot be used",
            help="look at OTEL_EXPORTER_OTLP_CERTIFICATE, CLIENT_CERTIFICATE and CLIENT_KEY",
        ) from error
    return context
