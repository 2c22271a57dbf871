"""Artifacts over REST: metadata, downloads and queries."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.server.rest.downloads import ByteRange, RangeNotSatisfiable, parse_range
from tests.server.rest.gateway import Gateway, running, sent_to

pytestmark = pytest.mark.anyio

SIZE = 16 << 16


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


async def make_artifact(client: Any, tool: str, *, status: int = 200) -> Any:
    answer = await client.post(f"/v1/catalogues/desk/tools/{tool}/call", json={})
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_metadata_names_class_sizes_and_queries(gateway: Gateway) -> None:
    async with gateway.client() as client:
        called = await make_artifact(client, "facts")
        body = (await client.get(called["result"]["artifact"]["href"])).json()

    queries = {each["method"]: each["tool"] for each in body["queries"]}
    assert (body["kind"], body["type"], body["contentType"]) == ("SpooledJsonArtifact", "json", "application/json")
    assert (body["byteLength"], body["lineCount"], body["tool"]) == (16, 1, "facts")
    assert queries["json_get"] == "artifact_json_get"
    assert queries["grep"] == "artifact_grep"


@pytest.mark.parametrize(
    ("tool", "type", "name"),
    [
        pytest.param("facts", "application/json", "json", id="json"),
        pytest.param("page", "text/markdown; charset=utf-8", "md", id="markdown"),
        pytest.param("handle", "text/plain; charset=utf-8", "txt", id="text"),
    ],
)
async def test_download_has_the_type_of_its_class_and_is_no_page(
    gateway: Gateway, tool: str, type: str, name: str
) -> None:
    async with gateway.client() as client:
        called = await make_artifact(client, tool)
        answer = await client.get(called["result"]["artifact"]["contentHref"])

    assert answer.status_code == 200
    assert answer.headers["content-type"] == type
    assert answer.headers["content-disposition"].startswith(f'attachment; filename="{called["callId"]}.{name}"')
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert answer.headers["content-length"] == str(len(answer.content))


async def test_media_is_downloaded_part_by_part(gateway: Gateway) -> None:
    async with gateway.client() as client:
        called = await make_artifact(client, "two_pictures")
        answers = [await client.get(each["contentHref"]) for each in called["result"]["media"]]
        details = (await client.get(f"/v1/artifacts/{called['callId']}")).json()
        part = await client.get(called["result"]["media"][1]["contentHref"], headers={"range": "bytes=5-7"})
        beyond = await client.get(f"/v1/artifacts/{called['callId']}/content?part=2")

    assert [each.content for each in answers] == [b"\x89PNG 0123456789"] * 2
    assert answers[0].headers["content-type"] == "image/png"
    assert "filename*=UTF-8''pi%C3%A7%20ture.png" in answers[0].headers["content-disposition"]
    assert (details["kind"], len(details["parts"]), details["queries"]) == ("Media", 2, [])
    assert (part.status_code, part.content) == (206, b"012")
    assert beyond.status_code == 404


async def test_download_goes_through_the_masks_of_its_class(gateway: Gateway) -> None:
    async with gateway.client() as client:
        called = await make_artifact(client, "secretive")
        details = await client.get(called["result"]["artifact"]["href"])
        content = await client.get(called["result"]["artifact"]["contentHref"])
        ranged = await client.get(called["result"]["artifact"]["contentHref"], headers={"range": "bytes=0-200"})
        record = await client.get(f"/v1/calls/{called['callId']}")
        query = await client.post(f"/v1/artifacts/{called['callId']}/query", json={"method": "cat"})
        rendering = await client.get(f"/v1/turns/{called['turn']}/render")
        listed = await client.get("/v1/calls")

    assert content.json() == {"user": "kim", "password": "[redacted]"}
    assert details.json()["byteLength"] == len(content.content)
    answers = [details, content, ranged, record, query, rendering, listed]
    assert all("hunter2" not in each.text for each in [*answers])
    assert "hunter2" not in str(called)


@pytest.mark.parametrize(
    ("header", "status", "span"),
    [
        pytest.param(None, 200, (0, SIZE), id="whole"),
        pytest.param("bytes=0-9", 206, (0, 10), id="first"),
        pytest.param("bytes=10-10", 206, (10, 11), id="one-byte"),
        pytest.param(f"bytes={SIZE - 5}-", 206, (SIZE - 5, SIZE), id="to-the-end"),
        pytest.param("bytes=-7", 206, (SIZE - 7, SIZE), id="suffix"),
        pytest.param(f"bytes=-{SIZE * 2}", 206, (0, SIZE), id="suffix-larger-than-all"),
        pytest.param(f"bytes=5-{SIZE * 9}", 206, (5, SIZE), id="end-is-cut"),
        pytest.param("bytes=300000-900000", 206, (300000, 900001), id="several-chunks"),
        pytest.param(f"bytes={SIZE}-", 416, None, id="past-the-end"),
        pytest.param("bytes=-0", 416, None, id="nothing-of-the-end"),
        pytest.param("bytes=0-1,5-6", 200, (0, SIZE), id="two-ranges"),
        pytest.param("bytes=" + ",".join(f"{n}-{n}" for n in range(2000)), 200, (0, SIZE), id="thousands"),
        pytest.param("bytes=9-5", 200, (0, SIZE), id="backwards"),
        pytest.param("lines=0-5", 200, (0, SIZE), id="other-unit"),
        pytest.param("bytes=a-b", 200, (0, SIZE), id="no-numbers"),
        pytest.param("bytes=-", 200, (0, SIZE), id="empty"),
        pytest.param("bytes=٣-٥".encode().decode("latin-1"), 200, (0, SIZE), id="other-digits"),
    ],
)
async def test_one_range_is_served_and_others_are_ignored(
    gateway: Gateway, header: str | None, status: int, span: tuple[int, int] | None
) -> None:
    content = b"0123456789abcdef" * (1 << 16)
    async with gateway.client() as client:
        called = await make_artifact(client, "big")
        headers = [] if header is None else [(b"range", header.encode("latin-1"))]
        answer = await client.get(called["result"]["artifact"]["contentHref"], headers=headers)

    assert answer.status_code == status
    if span is None:
        assert answer.headers["content-range"] == f"bytes */{SIZE}"
        assert answer.json()["code"] == "E_RANGE_NOT_SATISFIABLE"
    else:
        assert answer.content == content[span[0] : span[1]]
        assert answer.headers.get("content-range") == (
            f"bytes {span[0]}-{span[1] - 1}/{SIZE}" if status == 206 else None
        )


async def test_range_of_another_version_is_the_whole(gateway: Gateway) -> None:
    async with gateway.client() as client:
        href = (await make_artifact(client, "handle"))["result"]["artifact"]["contentHref"]
        tag = (await client.head(href)).headers["etag"]
        same = await client.get(href, headers={"range": "bytes=0-3", "if-range": tag})
        other = await client.get(href, headers={"range": "bytes=0-3", "if-range": '"other"'})
        known = await client.get(href, headers={"if-none-match": tag})
        twice = await client.get(href, headers=[("range", "bytes=0-1"), ("range", "bytes=2-3")])

    assert (same.status_code, same.content) == (206, b"line")
    assert (other.status_code, len(other.content)) == (200, 28)
    assert (known.status_code, known.content) == (304, b"")
    assert twice.status_code == 200


async def test_head_shows_sizes_without_content(gateway: Gateway) -> None:
    async with gateway.client() as client:
        href = (await make_artifact(client, "big"))["result"]["artifact"]["contentHref"]
        answer = await client.head(href, headers={"range": "bytes=0-1"})

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(SIZE)


async def test_large_download_is_sent_in_chunks(gateway: Gateway) -> None:
    async with gateway.client() as client:
        href = (await make_artifact(client, "big"))["result"]["artifact"]["contentHref"]
    path, _, query = href.partition("?")

    messages = await sent_to(gateway.app, path, query=query)

    sizes = [len(each.get("body", b"")) for each in messages]
    assert sum(sizes) == SIZE
    assert max(sizes) <= 256 << 10


async def test_nothing_is_read_for_a_client_that_left(gateway: Gateway) -> None:
    async with gateway.client() as client:
        href = (await make_artifact(client, "big"))["result"]["artifact"]["contentHref"]
    path, _, query = href.partition("?")

    messages = await sent_to(gateway.app, path, query=query, is_leaving=True)

    assert sum(len(each.get("body", b"")) for each in messages) < SIZE


class TestQueries:
    @pytest.mark.parametrize("asked", [{"method": "grep"}, {"tool": "artifact_grep"}], ids=["method", "tool"])
    async def test_query_by_method_or_tool(self, gateway: Gateway, asked: dict[str, str]) -> None:
        async with gateway.client() as client:
            called = await make_artifact(client, "handle")
            body = {**asked, "arguments": {"pattern": "three"}}
            answer = await client.post(f"/v1/artifacts/{called['callId']}/query", json=body)

        assert answer.json()["result"] == {"kind": "text", "text": "line three"}
        assert answer.json()["turn"] == called["turn"]
        assert answer.json()["tool"] == "artifact_grep"

    async def test_query_is_narrowed_to_the_class(self, gateway: Gateway) -> None:
        async with gateway.client() as client:
            called = await make_artifact(client, "handle")
            answer = await client.post(
                f"/v1/artifacts/{called['callId']}/query", json={"method": "json_get", "arguments": {"path": "$"}}
            )

        assert answer.status_code == 400
        assert "grep" in answer.json()["help"]

    async def test_call_id_is_the_one_of_the_path(self, gateway: Gateway) -> None:
        async with gateway.client() as client:
            one, two = await make_artifact(client, "handle"), await make_artifact(client, "facts")
            body = {"method": "line_count", "arguments": {"callId": two["callId"]}}
            answer = await client.post(f"/v1/artifacts/{one['callId']}/query", json=body)

        assert answer.json()["result"]["text"] == "3"

    async def test_wrong_arguments_are_an_error_result(self, gateway: Gateway) -> None:
        async with gateway.client() as client:
            called = await make_artifact(client, "handle")
            answer = await client.post(
                f"/v1/artifacts/{called['callId']}/query", json={"method": "head", "arguments": {"n": -1}}
            )

        assert (answer.status_code, answer.json()["isError"]) == (422, True)

    @pytest.mark.parametrize("body", [{}, {"method": "head", "tool": "artifact_head"}], ids=["neither", "both"])
    async def test_exactly_one_of_method_and_tool_is_given(self, gateway: Gateway, body: dict[str, str]) -> None:
        async with gateway.client() as client:
            called = await make_artifact(client, "handle")
            answer = await client.post(f"/v1/artifacts/{called['callId']}/query", json=body)

        assert answer.status_code == 400


class TestOneAnswerForEverythingMissing:
    async def test_gone_revoked_foreign_and_unknown_are_the_same_bytes(self, gateway: Gateway) -> None:
        async with gateway.client("bob") as client:
            foreign = await make_artifact(client, "handle")
        async with gateway.client() as client:
            revoked, brief = [await make_artifact(client, name) for name in ("facts", "short_lived")]
            failed = await make_artifact(client, "fails", status=424)
            text = await make_artifact(client, "handle")
            query = await client.post(f"/v1/artifacts/{text['callId']}/query", json={"method": "head"})
            gateway.grants.rows -= {("role:staff", "desk", "facts")}
            ids = [each["callId"] for each in (foreign, revoked, brief, failed, query.json())]
            ids += ["unknown", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "a%00b", "x" * 300]
            answers = [await client.get(f"/v1/artifacts/{id}{rest}") for id in ids for rest in ("", "/content")]
            answers += [await client.post(f"/v1/artifacts/{id}/query", json={"method": "head"}) for id in ids]

        found = {each.content for each in answers if b"E_UNKNOWN_PATH" not in each.content}
        assert {each.status_code for each in answers} == {404}
        assert len(found) == 1


@given(header=st.from_regex(r"bytes=\d{0,6}-\d{0,6}", fullmatch=True), size=st.integers(0, 5000))
def test_any_span_lies_within_the_content(header: str, size: int) -> None:
    try:
        span = parse_range(header, size)
    except RangeNotSatisfiable:
        return

    assert span is None or (isinstance(span, ByteRange) and 0 <= span.start < span.end <= size)
