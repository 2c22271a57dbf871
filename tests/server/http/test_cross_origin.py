"""Pages of listed origins can call from a browser; other pages get no CORS headers."""

from collections.abc import MutableMapping
from typing import Any

import pytest

from gateway.model.caller import Principal
from gateway.server.http.middleware import CorsMiddleware, EdgeMiddleware, EdgeRules

pytestmark = pytest.mark.anyio

PAGE = "https://app.example.com"
RULES = EdgeRules(origins=frozenset({PAGE}), open_paths=())

Headers = list[tuple[str, str]]


async def send_request(
    *headers: tuple[str, str], method: str = "GET", host: str = "localhost", own: Headers | None = None
) -> tuple[int, Headers, list[str]]:
    """Status and headers of an answer, and the methods that reached the app. `own` are the app's own headers."""
    sent: list[MutableMapping[str, Any]] = []
    reached: list[str] = []

    async def app(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        reached.append(scope["method"])
        listed = [(name.encode(), value.encode()) for name, value in own or []]
        await send({"type": "http.response.start", "status": 200, "headers": listed})
        await send({"type": "http.response.body", "body": b""})

    async def authenticate(credential: bytes | None) -> Principal:
        return Principal("user:ana", frozenset())

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nothing here reads a body")

    raw = [(name.encode(), value.encode()) for name, value in (("host", host), *headers)]
    scope = {"type": "http", "method": method, "path": "/x", "headers": raw}
    await CorsMiddleware(EdgeMiddleware(app, RULES, authenticate), RULES)(scope, receive, send)
    return sent[0]["status"], [(name.decode(), value.decode()) for name, value in sent[0]["headers"]], reached


def preflight(*headers: str, origin: str = PAGE) -> list[tuple[str, str]]:
    asked = [("access-control-request-headers", ",".join(headers))] if headers else []
    return [("origin", origin), ("access-control-request-method", "POST"), *asked]


async def test_preflight_lists_what_a_listed_page_may_send() -> None:
    asked = preflight("authorization", " Content-Type", "mcp-protocol-version", "Mcp-Param-Region", "x-other")
    status, headers, reached = await send_request(*asked, method="OPTIONS")

    assert (status, reached) == (204, [])
    allowed = dict(headers)
    assert allowed["access-control-allow-origin"] == PAGE
    assert allowed["access-control-allow-methods"] == "GET, HEAD, POST, DELETE"
    named = "authorization, content-type, mcp-protocol-version, mcp-param-region"
    assert allowed["access-control-allow-headers"] == named
    assert "access-control-allow-credentials" not in allowed
    assert "content-length" not in allowed


async def test_listed_page_may_read_the_answer_and_its_headers() -> None:
    status, headers, reached = await send_request(("origin", PAGE), own=[("vary", "authorization")])

    assert (status, reached) == (200, ["GET"])
    assert dict(headers)["access-control-allow-origin"] == PAGE
    assert "mcp-session-id" in dict(headers)["access-control-expose-headers"].split(", ")
    assert [value for name, value in headers if name == "vary"] == ["authorization", "origin"]


async def test_answer_for_every_origin_names_the_one_that_asks() -> None:
    _, headers, _ = await send_request(("origin", PAGE), own=[("access-control-allow-origin", "*")])

    assert [value for name, value in headers if name == "access-control-allow-origin"] == [PAGE]


@pytest.mark.parametrize("origin", ["https://evil.com", "null", f"{PAGE}.evil.com", "http://localhost"])
@pytest.mark.parametrize("method", ["OPTIONS", "GET"])
async def test_no_other_page_gets_permission(origin: str, method: str) -> None:
    _, headers, _ = await send_request(*preflight("authorization", origin=origin), method=method)

    assert not [name for name, _ in headers if name.startswith("access-control-")]


async def test_two_origins_are_no_listed_one() -> None:
    status, headers, reached = await send_request(*preflight(), ("origin", "https://evil.com"), method="OPTIONS")

    assert (status, reached) == (403, [])
    assert not [name for name, _ in headers if name.startswith("access-control-")]


async def test_host_counts_for_browsers_that_ask_first_too() -> None:
    status, _, reached = await send_request(*preflight(), method="OPTIONS", host="evil.com")

    assert (status, reached) == (421, [])


async def test_options_without_a_question_is_a_request_like_any_other() -> None:
    _, _, reached = await send_request(("origin", PAGE), method="OPTIONS")

    assert reached == ["OPTIONS"]


async def test_callers_that_are_no_pages_notice_nothing() -> None:
    assert await send_request() == (200, [], ["GET"])
