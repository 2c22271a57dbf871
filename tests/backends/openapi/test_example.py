"""The carrier of the example configuration: operations of its OpenAPI document, called by a real client."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import mcp_types as types
import pytest
from mcp import Client

from gateway.examples.helpdesk_service import HelpdeskError, HelpdeskServer, find_shipments, get_shipment, sample_store
from tests.backends.mcp.servers.front_gateway import gateway
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio


@pytest.fixture
def service() -> Iterator[str]:
    with HelpdeskServer(0, "token", sample_store()) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


def support(url: str) -> Client:
    return Client(url.replace("/shop/", "/support/"), mode="2026-07-28")


async def test_shipments_are_found_and_read_in_the_shape_of_the_example(service: str, tmp_path: Path) -> None:
    environ = {"HELPDESK_URL": service, "HELPDESK_TOKEN": "token", "GATEWAY_DATA_DIR": str(tmp_path)}
    async with gateway(ROOT, environ=environ) as started, support(started.url) as client:
        listed = {each.name: each for each in (await client.list_tools()).tools}
        found = await client.call_tool("shipment_find", {"order_number": "A-1001"})
        read = await client.call_tool("freight_getShipment", {"reference": "FR-2041"})
        other = await client.call_tool("shipment_find", {"order_number": "A-1001", "customer": "globex"})
        missing = await client.call_tool("freight_getShipment", {"reference": "FR-1"})

    assert listed["shipment_find"].input_schema["properties"].keys() == {"order_number", "state", "limit"}
    assert "freight_bookShipment" not in listed
    assert "FR-2041" in str(found.content)
    assert "Kassel" in str(read.content)
    assert all(isinstance(block, types.TextContent) for block in read.content)
    assert (found.is_error, read.is_error, other.is_error, missing.is_error) == (False, False, True, True)


def test_carrier_answers_what_its_document_declares() -> None:
    assert find_shipments({"customer": "acme", "state": "delivered"})["total"] == 1
    assert len(find_shipments({"customer": "acme", "limit": "2"})["shipments"]) == 2
    for asked in ({}, {"customer": "globex"}, {"customer": "acme", "state": "x"}, {"customer": "acme", "limit": "0"}):
        with pytest.raises(HelpdeskError):
            find_shipments(asked)
    with pytest.raises(HelpdeskError):
        get_shipment("FR-1")
