"""Catalogues and tools over REST: who sees what, in which shape, and when it is sent again."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.rest.gateway import Gateway, running, with_catalogue

pytestmark = pytest.mark.anyio

TOOLS = "/v1/catalogues/desk/tools"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


async def get(gateway: Gateway, path: str, who: str = "ann", **headers: str) -> Any:
    async with gateway.client(who) as client:
        return await client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


async def test_only_admitting_catalogues_are_listed(gateway: Gateway) -> None:
    named = {
        who: [each["name"] for each in (await get(gateway, "/v1/catalogues", who)).json()["catalogues"]]
        for who in ("ann", "guest")
    }

    assert named == {"ann": ["desk", "plain"], "guest": ["desk"]}


async def test_catalogue_shows_its_title_and_where_its_tools_are(gateway: Gateway) -> None:
    body = (await get(gateway, "/v1/catalogues/desk")).json()

    assert body == {
        "name": "desk",
        "title": "The desk",
        "revision": "r1r1r1r1r1r1",
        "path": "/c/desk",
        "tools": "/v1/catalogues/desk/tools",
    }


async def test_own_listing_shows_what_documents_declare(gateway: Gateway) -> None:
    tools = {each["name"]: each for each in (await get(gateway, TOOLS)).json()["tools"]}

    assert tools["echo"] == {
        "name": "echo",
        "title": "Echo",
        "description": "Does echo.",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "times": {"type": "integer", "default": 1}},
            "required": ["text"],
        },
        "tier": "open",
        "flags": [],
        "effects": "declared",
        "lifecycle": "active",
        "hints": {"readOnly": True},
        "artifact": "text",
        "isQuery": False,
    }
    assert tools["pay"]["flags"] == ["writes"]
    assert tools["old_echo"]["deprecation"] == {"since": "2026-01-01", "removeAfter": "2999-01-01", "use": "echo"}
    assert tools["artifact_grep"]["isQuery"] is True
    assert "hidden_tool" not in tools


async def test_replacement_that_the_caller_is_not_shown_is_not_spoken_of(gateway: Gateway) -> None:
    gateway.grants.rows -= {("role:staff", "desk", "echo")}

    tools = {each["name"]: each for each in (await get(gateway, TOOLS)).json()["tools"]}

    assert "use" not in tools["old_echo"]["deprecation"]


@pytest.mark.parametrize(
    ("format", "schema_at"),
    [
        pytest.param("mcp", ("inputSchema",), id="mcp"),
        pytest.param("openai", ("function", "parameters"), id="openai"),
        pytest.param("anthropic", ("input_schema",), id="anthropic"),
        pytest.param("gemini", ("parametersJsonSchema",), id="gemini"),
    ],
)
async def test_provider_formats_hold_one_schema(gateway: Gateway, format: str, schema_at: tuple[str, ...]) -> None:
    body = (await get(gateway, f"{TOOLS}/echo?format={format}")).json()
    listed = (await get(gateway, f"{TOOLS}?format={format}")).json()

    assert body in listed["tools"]
    schema = body
    for key in schema_at:
        schema = schema[key]
    assert schema["required"] == ["text"]
    assert not {"tier", "flags", "lifecycle"} & set(body)


async def test_query_tools_take_any_call_id_outside_a_turn(gateway: Gateway) -> None:
    tool = (await get(gateway, f"{TOOLS}/artifact_head")).json()

    assert "enum" not in tool["inputSchema"]["properties"]["callId"]


async def test_what_the_client_has_is_not_sent_again(gateway: Gateway) -> None:
    first = await get(gateway, TOOLS)

    again = await get(gateway, TOOLS, if_none_match=first.headers["etag"])
    weak = await get(gateway, TOOLS, if_none_match=f'"other", W/{first.headers["etag"]}')
    format = await get(gateway, f"{TOOLS}?format=mcp", if_none_match=first.headers["etag"])

    assert (again.status_code, again.content) == (304, b"")
    assert weak.status_code == 304
    assert format.status_code == 200
    assert first.headers["cache-control"] == "private, no-cache"
    assert first.headers["vary"] == "authorization"


async def test_another_caller_or_revision_has_another_tag(gateway: Gateway) -> None:
    first = await get(gateway, TOOLS)

    guest = await get(gateway, TOOLS, "guest", if_none_match=first.headers["etag"])
    with_catalogue(gateway, "desk", title="Other")
    later = await get(gateway, TOOLS, if_none_match=first.headers["etag"])

    assert (guest.status_code, later.status_code) == (200, 200)
    assert first.headers["etag"].startswith('"r1r1r1r1r1r1-')
    assert later.headers["etag"].startswith('"r2r2r2r2r2r2-')


async def test_permission_that_is_taken_away_takes_the_tag_along(gateway: Gateway) -> None:
    first = await get(gateway, TOOLS)
    gateway.grants.rows -= {("role:staff", "desk", "pay")}

    later = await get(gateway, TOOLS, if_none_match=first.headers["etag"])

    assert later.status_code == 200
    assert "pay" not in {each["name"] for each in later.json()["tools"]}
