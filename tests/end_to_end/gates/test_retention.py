"""Closed approvals are deleted after the retention time in the Storage, not earlier."""

from pathlib import Path

import pytest

from tests.support.gateways.gate_projects import ANA, HELD, PEOPLE, approval_client, pay, rule, write
from tests.support.gateways.projects import start_call_counter, start_gateway

pytestmark = pytest.mark.anyio

SHORT = rule("leads-agree", {**HELD, "timeout": "1ms"})
"""Its approvals expire almost at once."""


@pytest.mark.parametrize(
    ("retain", "left"),
    [
        (None, 3),
        ({"calls": "1d"}, 3),
        ({"approvals": "1h"}, 3),
        pytest.param({"approvals": "1ms"}, 1, id="the newest stays: changes are counted by it"),
    ],
)
async def test_approval_that_is_over_is_there_for_as_long_as_it_is_retained(
    retain: dict[str, str] | None, left: int, tmp_path: Path
) -> None:
    async with start_call_counter() as backend:
        documents = approval_client(backend.port, rules=[SHORT])
        [storage] = [each for each in documents if each["kind"] == "Storage"]
        storage["spec"] |= {} if retain is None else {"retain": retain}
        async with start_gateway(write(tmp_path / "p", documents), tmp_path / "data", people=PEOPLE) as gateway:
            for text in ("a", "b", "c"):
                await pay(gateway.caller(ANA), text)
                await gateway.running.controlled.sweep()

            found = await gateway.caller(ANA).rest("GET", "/v1/approvals?state=any")
            assert len(found.json["approvals"]) == left
