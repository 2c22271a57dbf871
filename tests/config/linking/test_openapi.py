"""Operations of OpenAPI documents in the snapshot, and documents that only look like OpenAPI."""

from typing import Any

import pytest

from gateway.registries.imported_definition import UpstreamDefinition, build_tool_definition
from gateway.registries.snapshot import compute_revision
from tests.config.linking.projects import (
    catalogue,
    document,
    linked,
    list_codes,
    only_tool,
    snapshot_of,
    tier,
    tool,
    upstream,
)

REQUEST = {"method": "DELETE", "path": "/orders/{id}", "parameters": [{"argument": "id", "in": "path"}]}
DEFINITION: dict[str, Any] = {
    "name": "dropOrder",
    "description": "Drops an order.",
    "inputSchema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
    "_meta": {"gateway/request": REQUEST, "gateway/answer": {"artifact": "json"}},
}


def openapi(name: str = "shop", **import_: Any) -> str:
    transport = {"type": "openapi", "document": "https://127.0.0.1/openapi.json", "server": "https://127.0.0.1"}
    terms = {"include": ["*"], "trust": {"tier": "middle"}, **import_}
    return document("Upstream", name, {"transport": transport, "import": terms})


def definition(upstream: str) -> UpstreamDefinition:
    return UpstreamDefinition.read(upstream, DEFINITION, is_pinned=True)


def test_operation_is_in_the_snapshot_with_its_request() -> None:
    found = only_tool(linked(openapi(), catalogue(), imports=[definition("shop")]))

    assert (found.name, found.backend, found.artifact) == ("shop.dropOrder", "openapi", "json")
    assert found.request is not None
    assert found.request["request"]["path"] == "/orders/{id}"


def test_request_that_an_mcp_server_writes_is_passed_over() -> None:
    found = only_tool(linked(upstream("shop"), catalogue(), imports=[definition("shop")]))

    assert (found.backend, found.artifact, found.request) == ("mcp", "text", None)


def test_request_that_an_mcp_server_writes_is_passed_over_for_a_declared_tool() -> None:
    declared = tool("order_drop", backend={"type": "mcp", "upstream": "shop", "tool": "dropOrder"}, input=INPUT)

    found = snapshot_of(linked(upstream("shop"), declared, catalogue(), imports=[definition("shop")]))

    assert found.tools["order_drop"].request is None


INPUT = {"schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}}


@pytest.mark.parametrize("artifact", ["secret", 7, None, "../etc"])
def test_artifact_that_is_none_is_text(artifact: Any) -> None:
    given = {**DEFINITION, "_meta": {"gateway/request": REQUEST, "gateway/answer": {"artifact": artifact}}}

    found = only_tool(linked(openapi(), catalogue(), imports=[UpstreamDefinition.read("shop", given)]))

    assert found.artifact == "text"


def test_tier_that_forbids_http_forbids_operations() -> None:
    strict = tier("strict", rank=5, forbids={"backends": ["http"]})

    found = linked(openapi(trust={"tier": "strict"}), strict, catalogue(), imports=[definition("shop")])

    assert "tier-forbids-backend" in list_codes(found)


def test_other_request_is_another_revision() -> None:
    moved = {**DEFINITION, "_meta": {"gateway/request": {**REQUEST, "path": "/admin/{id}"}}}
    both = [
        snapshot_of(linked(openapi(), catalogue(), imports=[UpstreamDefinition.read("shop", given)]))
        for given in (DEFINITION, moved)
    ]

    assert compute_revision(both[0], []) != compute_revision(both[1], [])


def test_operation_may_be_published_under_another_name_without_a_schema() -> None:
    declared = document(
        "Tool",
        "order_drop",
        {
            "version": "1.0.0",
            "description": "Drops an order.",
            "trust": {"tier": "inner"},
            "backend": {
                "type": "openapi",
                "upstream": "shop",
                "tool": "dropOrder",
                "arguments": {"renamed": {"id": "number"}},
            },
        },
    )

    found = snapshot_of(linked(openapi(), declared, catalogue(), imports=[definition("shop")])).tools["order_drop"]

    assert found.artifact == "json"
    assert found.input_schema is not None
    assert set(found.input_schema["properties"]) == {"number"}
    assert (
        "shop.dropOrder"
        not in snapshot_of(linked(openapi(), declared, catalogue(), imports=[definition("shop")])).tools
    )


def test_declared_operation_needs_an_openapi_upstream() -> None:
    declared = tool("order_drop", backend={"type": "openapi", "upstream": "wiki", "tool": "find"})

    found = linked(upstream(), declared, catalogue(), imports=[build_tool_definition("wiki", "find")])

    assert "wrong-value" in list_codes(found)
