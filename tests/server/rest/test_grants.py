"""Grants over REST where they are not stored; `tests/end_to_end/gates/test_grants.py` has those that are."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.rest.gateway import Gateway, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running(tmp_path) as started:
        yield started


REQUEST = {"subject": "user:ann", "role": "role:reader", "seconds": 60, "reason": "INC-42"}


async def test_grants_that_are_not_stored_are_unavailable(gateway: Gateway) -> None:
    async with gateway.client() as client:
        answers = [
            await client.get("/v1/grants"),
            await client.post("/v1/grants", json=REQUEST),
            *[await client.post(f"/v1/grants/g1/{verb}", json={}) for verb in ("approve", "refuse", "revoke")],
        ]

    assert [each.status_code for each in answers] == [503] * 5
    assert answers[0].json()["detail"].startswith("grants are not stored here")


@pytest.mark.parametrize(
    "change",
    [{"seconds": 0}, {"seconds": "60"}, {"subject": ""}, {"reason": ""}, {"approved": True}, {"role": None}],
)
async def test_malformed_requests_are_refused(change: dict[str, object], gateway: Gateway) -> None:
    async with gateway.client() as client:
        answer = await client.post("/v1/grants", json={**REQUEST, **change})

    assert answer.status_code == 400
