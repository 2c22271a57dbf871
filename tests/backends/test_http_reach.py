"""HTTP backends connect only to the host of their document, at a checked address."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gateway.backends.http.backend import ArgumentSelection, HttpBackend, HttpRequest
from gateway.backends.http.credentials import BearerAuth
from gateway.backends.http.url_template import parse_url_template
from gateway.backends.result_conversion import BackendUnusable
from gateway.http_client import HttpConnections, ResolveHost
from gateway.http_client.allowed_addresses import (
    LOOPBACK,
    AddressNotAllowed,
    check_addresses,
    is_public,
    networks_allowed_by_host,
)
from gateway.model.tools.backend import BackendError
from tests.backends.invocations import Spool, invocation
from tests.backends.loopback_service import Service, plain, start_service

pytestmark = pytest.mark.anyio

ELSEWHERE = (ip_network("127.0.0.2/32"),)
"""Stands for a public address; 127.0.0.1 stands for what must not be reached."""


@asynccontextmanager
async def start_trap() -> AsyncIterator[tuple[Service, Service]]:
    """A service, and a trap on the same port of another address."""
    port = port_of_both()
    async with (
        start_service(plain(b"ok"), host="127.0.0.2", port=port) as service,
        start_service(plain(b"trap"), port=port) as trap,
    ):
        yield service, trap


def port_of_both() -> int:
    """A port that is free at both addresses."""
    while True:
        with socket.socket() as service, socket.socket() as trap, suppress(OSError):
            service.bind(("127.0.0.2", 0))
            trap.bind(("127.0.0.1", service.getsockname()[1]))
            return int(trap.getsockname()[1])


def make_resolver(*answers: Sequence[str]) -> tuple[ResolveHost, list[str]]:
    """A resolver that gives a different answer each time, and the names it was asked for."""
    asked: list[str] = []

    async def lookup(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    return lookup, asked


async def fetch_bytes(request: HttpRequest, lookup: ResolveHost, args: dict[str, Any] | None = None) -> bytes:
    spool = Spool()
    connections = HttpConnections(lookup=lookup)
    try:
        async with asyncio.timeout(10):
            await HttpBackend(replace(request, networks=ELSEWHERE), connections).run(invocation(args or {}, spool))
    finally:
        await connections.close()
    return spool.kept[0]


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["127.0.0.2", "127.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["0.0.0.0"],
        ["169.254.169.254"],
        ["not an address"],
        ["fe80::1%lo"],
        [],
    ],
    ids=str,
)
async def test_name_that_leads_inside_is_refused(addresses: list[str]) -> None:
    lookup, _ = make_resolver(addresses)
    async with start_trap() as (service, trap):
        with pytest.raises(BackendError) as caught:
            await fetch_bytes(HttpRequest("GET", f"http://service.example:{service.port}/"), lookup)

    assert caught.value.message == "the service's name resolves to an address that tools may not reach"
    assert (service.connections, trap.connections) == (0, 0)


async def test_name_is_looked_up_once_and_the_checked_address_is_used() -> None:
    lookup, asked = make_resolver(["127.0.0.2"], ["127.0.0.1"])
    async with start_trap() as (service, trap):
        body = await fetch_bytes(HttpRequest("GET", f"http://service.example:{service.port}/"), lookup)

    assert (body, asked) == (b"ok", ["service.example"])
    assert trap.connections == 0


async def test_rebound_name_is_refused_at_the_next_lookup() -> None:
    lookup, asked = make_resolver(["127.0.0.2"], ["127.0.0.1"])
    async with start_trap() as (service, trap):
        request = HttpRequest("GET", f"http://service.example:{service.port}/")
        await fetch_bytes(request, lookup)
        with pytest.raises(BackendError):
            await fetch_bytes(request, lookup)

    assert len(asked) == 2
    assert trap.connections == 0


async def test_name_that_cannot_be_looked_up_is_unavailable() -> None:
    async def nothing(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    with pytest.raises(BackendError) as caught:
        await fetch_bytes(HttpRequest("GET", "http://service.example/"), nothing)

    assert (caught.value.word, caught.value.message) == ("unavailable", "the service cannot be reached")


async def test_tools_of_one_service_reach_what_each_of_them_may() -> None:
    lookup, _ = make_resolver(["127.0.0.2"])
    connections = HttpConnections(lookup=lookup)
    async with start_trap() as (service, _), asyncio.timeout(10):
        request = HttpRequest("GET", f"http://service.example:{service.port}/")
        spool = Spool()
        await HttpBackend(replace(request, networks=ELSEWHERE), connections).run(invocation({}, spool))
        with pytest.raises(BackendError) as caught:
            await HttpBackend(request, connections).run(invocation({}, spool))
        await connections.close()

    assert spool.kept[0] == b"ok"
    assert caught.value.message == "the service's name resolves to an address that tools may not reach"
    assert service.connections == 1


OFF_HOST = [
    "http://127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "http://127.0.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://127.1:{port}/",
    "http://localhost:{port}/",
    "http://localhost.:{port}/",
    "https://service.example:{port}/",
    "http://service.example.:{port}/",
    "http://service.example/",
    "http://service.example:{port}@127.0.0.1:{port}/",
    "http://user:password@service.example:{port}/",
    "http://127。0。0。1:{port}/",
    "\\\\127.0.0.1:{port}\\",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_x",
    "http://[",
    "http://service.example:99999/",
]


@pytest.mark.parametrize("location", OFF_HOST)
@pytest.mark.parametrize("status", [302, 307])
async def test_redirect_off_the_host_is_not_followed(location: str, status: int) -> None:
    lookup, _ = make_resolver(["127.0.0.2"])
    async with start_service(plain(b"trap"), port=port_of_both()) as trap:
        there = location.format(port=trap.port)
        answers = (plain(b"", f"{status} Go", f"Location: {there}"), plain(b"", "404 Not Found"))
        async with start_service(*answers, host="127.0.0.2", port=trap.port) as service:
            request = HttpRequest(
                "GET", f"http://service.example:{service.port}/", auth=BearerAuth(lambda: "s3cret-token")
            )
            with pytest.raises(BackendError) as caught:
                await fetch_bytes(request, lookup)

    assert caught.value.word in ("failed", "not-found")  # a target without a host is a path on this one
    assert trap.connections == 0


@pytest.mark.parametrize(
    ("status", "method", "again", "body"),
    [
        (301, "GET", "GET", b""),
        (302, "HEAD", "HEAD", b""),
        (303, "HEAD", "HEAD", b""),
        (301, "POST", "GET", b""),
        (302, "POST", "GET", b""),
        (303, "POST", "GET", b""),
        (303, "PUT", "GET", b""),
        (302, "PUT", "PUT", b'{"a": 1}'),
        (307, "POST", "POST", b'{"a": 1}'),
        (308, "DELETE", "DELETE", b'{"a": 1}'),
    ],
)
async def test_redirect_on_the_host_keeps_to_the_rules(status: int, method: Any, again: str, body: bytes) -> None:
    lookup, _ = make_resolver(["127.0.0.2"])
    answers = (plain(b"", f"{status} Go", "Location: ../b?c=1#d"), plain())
    async with start_service(*answers, host="127.0.0.2") as service:
        await fetch_bytes(
            HttpRequest(
                method,
                f"http://service.example:{service.port}/x/a",
                auth=BearerAuth(lambda: "token"),
                body=None if method in ("GET", "HEAD") else ArgumentSelection(),
            ),
            lookup,
            {"a": 1},
        )

    second = service.received[1]
    assert second.line == f"{again} /b?c=1 HTTP/1.1"
    assert second.body == body
    assert second.headers["authorization"] == "Bearer token"
    assert ("content-type" in second.headers) == bool(body)


async def test_redirects_come_to_an_end() -> None:
    lookup, _ = make_resolver(["127.0.0.2"])
    async with start_service(plain(b"", "302 Go", "Location: /again"), host="127.0.0.2") as service:
        with pytest.raises(BackendError) as caught:
            await fetch_bytes(HttpRequest("GET", f"http://service.example:{service.port}/"), lookup)

    assert caught.value.message == "the service redirects too often"
    assert len(service.received) == 6


def self_signed(folder: Path, name: str) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2120, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain_text = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "both.pem").write_bytes(certificate.public_bytes(Encoding.PEM) + key.private_bytes(*plain_text))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "both.pem")
    return context


async def test_service_that_cannot_prove_who_it_is_gets_no_request(tmp_path: Path) -> None:
    lookup, _ = make_resolver(["127.0.0.2"])
    async with start_service(plain(b"ok"), host="127.0.0.2", tls=self_signed(tmp_path, "service.example")) as service:
        request = HttpRequest(
            "GET", f"https://service.example:{service.port}/", auth=BearerAuth(lambda: "s3cret-token")
        )
        with pytest.raises(BackendError) as caught:
            await fetch_bytes(request, lookup)

    assert (caught.value.word, caught.value.message) == ("failed", "the certificate of the service is not valid")
    assert service.received == []


async def test_service_without_tls_gets_no_request() -> None:
    lookup, _ = make_resolver(["127.0.0.2"])
    async with start_service(plain(b"ok"), host="127.0.0.2") as service:
        with pytest.raises(BackendError) as caught:
            await fetch_bytes(HttpRequest("GET", f"https://service.example:{service.port}/"), lookup)

    assert caught.value.word == "unavailable"
    assert service.received == []


HOSTILE = [
    "127.0.0.1",
    "2130706433",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "[::ffff:127.0.0.1]",
    "localhost.",
    "@127.0.0.1",
    ":80@127.0.0.1/",
    "//127.0.0.1/",
    "/\\127.0.0.1/",
    "..//127.0.0.1",
    "?@127.0.0.1",
    "#@127.0.0.1",
    "\r\nHost: 127.0.0.1\r\n\r\n",
    "%0d%0aHost:%20127.0.0.1",
    "。127。0。0。1",
    "．．／admin",
    "http://127.0.0.1/",
    "env:HOME",
    "file:/etc/passwd",
]


@pytest.mark.parametrize("value", HOSTILE)
async def test_no_argument_changes_where_a_request_goes(value: str) -> None:
    lookup, asked = make_resolver(["127.0.0.2"])
    async with start_trap() as (service, trap):
        request = HttpRequest(
            "POST",
            f"http://service.example:{service.port}/items/{{id}}",
            query=ArgumentSelection(("id",)),
            body=ArgumentSelection(("id",)),
        )
        await fetch_bytes(request, lookup, {"id": value})

    [received] = service.received
    path, _, query = received.target.partition("?")
    assert (path.count("/"), query.count("="), query.count("&")) == (2, 1, 0)
    assert received.headers["host"] == f"service.example:{service.port}"
    assert (asked, trap.connections) == (["service.example"], 0)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://service.example/",
        "//service.example/",
        "http:///x",
        "http://user@service.example/",
        "http://user:password@service.example/",
        "http://service.example/#x",
        "http://{host}/",
        "http://service.example:{port}/",
        "http://service.example/?q={x}",
        "http://service.example/{x",
        "http://service.example/{x y}",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://1.2.3.4./",
        "http://[fe80::1%25eth0]/",
        "http://127。0。0。1/",
        "http://service.example\\@127.0.0.1/",
        "http://service.example:99999/",
        "http://[::1/",
        "http://a b/",
    ],
)
def test_url_without_a_plain_fixed_host_is_refused(url: str) -> None:
    with pytest.raises(BackendUnusable):
        parse_url_template(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/", "http://localhost:{port}/"], ids=["address", "localhost"])
async def test_host_of_the_document_is_declared_by_being_there(url: str) -> None:
    lookup, _ = make_resolver(["127.0.0.1"])
    async with start_service(plain(b"ok")) as service:
        assert await fetch_bytes(HttpRequest("GET", url.format(port=service.port)), lookup) == b"ok"


async def test_declared_loopback_name_cannot_lead_elsewhere() -> None:
    lookup, _ = make_resolver(["10.0.0.1"])

    with pytest.raises(BackendError) as caught:
        await fetch_bytes(HttpRequest("GET", "http://localhost:1/"), lookup)

    assert "may not reach" in caught.value.message


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1"),
        *("192.0.0.8", "192.0.2.1", "192.168.1.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:8.8.8.8", "64:ff9b::808:808"),
        *("64:ff9b:1::1", "2001::1", "2001:db8::1", "2002:808:808::1", "fc00::1", "fd00:ec2::254", "fe80::1"),
        *("fec0::1", "ff02::1", "192.88.99.1", "2001:1ff::1", "3fff::1", "5f00::1"),
    ],
)
def test_address_that_is_not_public_is_refused(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(AddressNotAllowed):
        check_addresses([address, "8.8.8.8"], allowed=())


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450:4001::1"])
def test_public_address_is_allowed(address: str) -> None:
    assert check_addresses([address], allowed=()) == [address]


def test_only_an_address_or_this_host_is_declared() -> None:
    assert networks_allowed_by_host("10.0.0.1") == (ip_network("10.0.0.1"),)
    assert networks_allowed_by_host("localhost.") == LOOPBACK
    assert networks_allowed_by_host("intranet.example") == ()
