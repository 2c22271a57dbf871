"""Requests for operations of OpenAPI documents: sent to one server, each argument in its place."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gateway import Media
from gateway.backends.http.backend import HttpRequest
from gateway.backends.http.credentials import BasicAuth, BearerAuth, CookieAuth, HeaderAuth, QueryAuth
from gateway.backends.openapi.backend import OpenApiBackend, OpenApiOperation
from gateway.backends.openapi.request_template import BodyPart, RequestBody, RequestParameter, RequestTemplate
from gateway.backends.result_conversion import BackendUnusable, MediaTemplate
from gateway.http_client.pool import HttpConnections
from gateway.model.caller import Principal
from gateway.model.tools.backend import BackendError
from tests.backends.invocations import Spool, invocation
from tests.backends.loopback_service import Answer, plain, start_service

pytestmark = pytest.mark.anyio

ISSUES = RequestTemplate(
    "GET",
    "/repos/{owner}/issues",
    (
        RequestParameter("owner", "owner", "path", "simple", False),
        RequestParameter("page", "page", "query", "form", True),
        RequestParameter("labels", "labels", "query", "form", True),
        RequestParameter("x_kind", "X-Kind", "header", "simple", False),
        RequestParameter("theme", "theme", "cookie", "form", True),
    ),
    accept="application/json",
)
SECRET = "s3cret/&value"


def backend(
    url: str, connections: HttpConnections, *, request: RequestTemplate = ISSUES, **rest: Any
) -> OpenApiBackend:
    operation = {name: rest.pop(name) for name in ("key", "proof", "tell") if name in rest}
    return OpenApiBackend(OpenApiOperation(HttpRequest("GET", url, **rest), request, **operation), connections)


async def call_operation(
    *answers: Answer | bytes, args: dict[str, Any], base: str = "", **rest: Any
) -> tuple[Any, Any, bytes]:
    """The request that the service got, the backend's result, and the stored bytes."""
    spool = Spool()
    connections = HttpConnections()
    try:
        async with start_service(*answers) as service, asyncio.timeout(20):
            result = await backend(service.url + base, connections, **rest).run(invocation(args, spool, key="k-1"))
            return service.received[-1], result, spool.kept[0] if spool.kept else b""
    finally:
        await connections.close()


async def failure(*answers: Answer | bytes, args: dict[str, Any], **rest: Any) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await call_operation(*answers, args=args, **rest)
    return caught.value


async def test_every_argument_arrives_in_its_place() -> None:
    args = {"owner": "a/../b", "page": 2, "labels": ["x&y", "z"], "x_kind": "big", "theme": "dark; admin=1"}

    got, _, kept = await call_operation(plain(b"[1]"), args=args, base="/api/v3/", headers={"X-Fixed": "1"})

    assert got.line == "GET /api/v3/repos/a%2F..%2Fb/issues?page=2&labels=x%26y&labels=z HTTP/1.1"
    assert {name: got.headers.get(name) for name in ("x-kind", "cookie", "accept", "x-fixed", "idempotency-key")} == {
        "x-kind": "big",
        "cookie": "theme=dark%3B%20admin%3D1",
        "accept": "application/json",
        "x-fixed": "1",
        "idempotency-key": "k-1",
    }
    assert kept == b"[1]"


async def test_header_of_the_document_beats_the_same_one_of_a_call() -> None:
    got, *_ = await call_operation(plain(), args={"owner": "a", "x_kind": "mine"}, headers={"x-kind": "theirs"})

    assert got.headers["x-kind"] == "theirs"


async def test_body_is_sent_in_its_media_type() -> None:
    request = RequestTemplate(
        "PATCH", "/a", body=RequestBody("application/merge-patch+json", True, None, (BodyPart("t", "title"),))
    )

    got, *_ = await call_operation(plain(), args={"t": "ü"}, request=request)

    assert (got.headers["content-type"], got.body) == ("application/merge-patch+json", '{"title": "ü"}'.encode())


@pytest.mark.parametrize(
    ("given", "place", "text"),
    [
        ({"auth": BearerAuth(lambda: SECRET)}, "authorization", f"Bearer {SECRET}"),
        ({"auth": BasicAuth("bot", lambda: "pw")}, "authorization", "Basic Ym90OnB3"),
        ({"auth": HeaderAuth("X-Key", lambda: SECRET)}, "x-key", SECRET),
        ({"key": CookieAuth("sid", lambda: SECRET)}, "cookie", "theme=t; sid=s3cret%2F%26value"),
    ],
    ids=["bearer", "basic", "header", "cookie"],
)
async def test_credentials_are_added_to_the_headers(given: dict[str, Any], place: str, text: str) -> None:
    got, *_ = await call_operation(plain(), args={"owner": "a", "theme": "t"}, **given)

    assert got.headers[place] == text


class Granting:
    """Grants each caller a token, and a new one after a refusal."""

    def __init__(self) -> None:
        self.refused = 0

    async def headers(self, principal: Principal, pool: HttpConnections) -> dict[str, str]:
        return {"authorization": f"Bearer {principal.subject}-{self.refused}"}

    def renew(self, principal: Principal) -> bool:
        self.refused += 1
        return True


async def test_granted_token_is_sent_and_forgotten_once_it_is_refused() -> None:
    granting = Granting()

    error = await failure(plain(b"no ann-0 here", "401 Unauthorized"), args={"owner": "a"}, proof=granting)
    got, *_ = await call_operation(plain(), args={"owner": "a", "page": 1}, proof=granting)

    assert error.message == "the service answered 401 Unauthorized: no [redacted] here"
    assert (got.headers["authorization"], got.target) == ("Bearer ann-1", "/repos/a/issues?page=1")


async def test_key_is_added_to_the_query() -> None:
    got, *_ = await call_operation(plain(), args={"owner": "a", "page": 1}, key=QueryAuth("api_key", lambda: SECRET))

    assert got.target == "/repos/a/issues?page=1&api_key=s3cret%2F%26value"


async def test_arguments_cannot_bring_a_credential_of_their_own() -> None:
    free = RequestTemplate("GET", "/a", (RequestParameter("filter", "filter", "query", "form", True),))

    error = await failure(
        plain(), args={"filter": {"api_key": "mine"}}, request=free, key=QueryAuth("api_key", lambda: SECRET)
    )

    assert (error.word, error.message) == (
        "invalid",
        "argument 'filter' has a key that is the name of another parameter",
    )


@pytest.mark.parametrize(
    "key", [QueryAuth("k", lambda: SECRET), CookieAuth("k", lambda: SECRET)], ids=["query", "cookie"]
)
async def test_error_of_the_service_never_quotes_a_secret(key: QueryAuth | CookieAuth) -> None:
    echo = b"you sent s3cret/&value and s3cret%2F%26value"

    error = await failure(plain(echo, "403 Forbidden"), args={"owner": "a"}, key=key)

    assert (error.word, error.message) == (
        "not-permitted",
        "the service answered 403 Forbidden: you sent [redacted] and [redacted]",
    )


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("400 Bad Request", "invalid"),
        ("401 Unauthorized", "not-permitted"),
        ("404 Not Found", "not-found"),
        ("409 Conflict", "conflict"),
        ("429 Too Many Requests", "unavailable"),
        ("500 Internal Server Error", "failed"),
        ("503 Service Unavailable", "unavailable"),
    ],
)
async def test_status_becomes_one_of_our_words(status: str, word: str) -> None:
    assert (await failure(plain(b"", status), args={"owner": "a"})).word == word


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"owner": ".."}, "argument 'owner' would change the path it is part of"),
        ({"owner": ""}, "argument 'owner' would change the path it is part of"),
        ({}, "argument 'owner' was not given"),
        (
            {"owner": "a", "x_kind": "b\r\nHost: evil"},
            "argument 'x_kind' has characters that are invalid in headers",
        ),
        ({"owner": "a", "labels": [[1]]}, "argument 'labels' has a part that is not a text, a number or a boolean"),
    ],
    ids=["dots", "empty", "missing", "line-break", "list-in-a-list"],
)
async def test_argument_that_cannot_stand_there_sends_nothing(args: dict[str, Any], message: str) -> None:
    connections = HttpConnections()
    async with start_service(plain()) as service:
        with pytest.raises(BackendError) as caught:
            await backend(service.url, connections).run(invocation(args))

        assert (caught.value.word, caught.value.message) == ("invalid", message)
        assert service.received == []
    await connections.close()


async def test_redirect_to_another_host_is_not_followed() -> None:
    moved = plain(b"", "302 Found", "Location: http://localhost:1/steal")

    error = await failure(moved, args={"owner": "a"}, auth=BearerAuth(lambda: SECRET))

    assert error.message == "the service redirects to another host, which is not followed"


NEXT = [
    ("next", '</repos/a/issues?page=3&labels=x>; rel="next", </x?page=9>; rel="last"', {"page": "3"}),
    ("absolute", "<{url}/repos/a/issues?page=3&labels=x>; rel=next", {"page": "3"}),
    ("unknown-names", '</repos/a/issues?page=3&admin=1>; rel="next"', {"page": "3"}),
    ("another-host", '<https://evil.example/repos/a/issues?page=3>; rel="next"', None),
    ("another-path", '</admin?page=3>; rel="next"', None),
    ("another-scheme", '<javascript:alert(1)>; rel="next"', None),
    ("previous", '</repos/a/issues?page=1>; rel="prev"', None),
    ("control-characters", '</repos/a/issues?page=%0a%1b>; rel="next"', None),
    ("not-a-link", "rel=next", None),
    ("no-port", '<http://127.0.0.1:99999999/repos/a/issues?page=3>; rel="next"', None),
]


@pytest.mark.parametrize(("link", "further"), [row[1:] for row in NEXT], ids=[row[0] for row in NEXT])
async def test_next_page_of_the_same_operation_is_named_and_not_followed(link: str, further: Any) -> None:
    pages: list[Any] = []
    connections = HttpConnections()
    answer = plain(b"[]", "200 OK", f"Link: {link}")

    async with start_service(lambda writer: _answered(writer, service.url)) as service:

        async def _answered(writer: asyncio.StreamWriter, url: str) -> None:
            writer.write(answer.replace(b"{url}", url.encode()))
            await writer.drain()

        await backend(service.url, connections, tell=pages.append).run(
            invocation({"owner": "a", "page": 2, "labels": ["x"]})
        )

        assert len(service.received) == 1
    await connections.close()
    message = "there is a next page: call again with these arguments"
    assert pages == ([] if further is None else [{"message": message, "next": further}])


async def test_picture_becomes_media() -> None:
    template = MediaTemplate("image", "image/png", "a.png", "third-party-public", "opaque-perceptual")

    _, result, _ = await call_operation(plain(b"\x89PNG"), args={"owner": "a"}, media=template)

    assert isinstance(result, Media)
    assert (result.kind, result.mime_type) == ("image", "image/png")


async def test_slow_service_is_given_up() -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    error = await failure(silent, args={"owner": "a"}, timeout=timedelta(milliseconds=50))

    assert (error.word, error.message) == ("unavailable", "no result within 0.05 s")


@pytest.mark.parametrize(
    ("url", "request_"),
    [
        ("https://api.example.com/{tenant}", ISSUES),
        ("https://api.example.com/?a=b", ISSUES),
        ("ftp://api.example.com", ISSUES),
        (
            "https://api.example.com",
            RequestTemplate("GET", "/", (RequestParameter("h", "Host", "header", "simple", False),)),
        ),
    ],
    ids=["placeholder", "query", "scheme", "header-of-ours"],
)
async def test_operation_that_cannot_work_is_not_built(url: str, request_: RequestTemplate) -> None:
    with pytest.raises(BackendUnusable):
        backend(url, HttpConnections(), request=request_)
