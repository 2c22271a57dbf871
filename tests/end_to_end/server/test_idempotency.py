"""The pipeline stage `idempotency`: how long keys are retained, and how they are passed to services."""

import sqlite3
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.gates.test_tasks import LEADS, approval_of, pay, wait_for_task
from tests.support.gateways import gate_projects as gated
from tests.support.gateways.gate_projects import LIZ, PEOPLE, approval_client, grant, write
from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    document,
    http_tool,
    start_call_counter,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))
POLICY = "p, role:staff, *, tool:*, invoke, internal, allow\n"


def project(folder: Path, port: int, *, stage: Mapping[str, Any] | None) -> Path:
    stages = [{"use": "gates"}, *([] if stage is None else [{"use": "idempotency", "with": dict(stage)}])]
    documents = [
        *base_documents(["tokens"], pipeline="keyed"),
        tokens_of([ANA]),
        http_tool("pay", port, flags=["writes"]),
    ]
    documents += [document("Pipeline", "keyed", {"call": stages}), catalogue("desk", ["role:staff"], ["*"])]
    return write_project(folder / "p", documents, policy=POLICY)


@pytest.mark.parametrize(
    ("stage", "kept", "header"),
    [
        (None, timedelta(days=1), "idempotency-key"),
        ({}, timedelta(minutes=10), "idempotency-key"),
        ({"keep": "2h", "header": "X-Request-Id"}, timedelta(hours=2), "x-request-id"),
    ],
    ids=["no stage", "defaults", "both options"],
)
async def test_key_is_kept_and_passed_on_as_the_pipeline_declares(
    stage: Mapping[str, Any] | None, kept: timedelta, header: str, tmp_path: Path
) -> None:
    async with start_call_counter() as backend:
        written = project(tmp_path, backend.port, stage=stage)
        async with start_gateway(written, tmp_path / "data", people=[ANA]) as gateway:
            caller = gateway.caller(ANA)
            for _ in range(2):
                called = await caller.rest_call("desk", "pay", {"text": "x"}, idempotency_key="k1")
                assert called.json["isError"] is False

        assert len(backend.requests) == 1
        headers = {name.lower(): value for name, value in backend.requests[0][1].items()}
        assert [name for name, value in headers.items() if value == "k1"] == [header]
    assert kept_for(tmp_path) == pytest.approx(kept.total_seconds(), abs=60)


async def test_key_of_a_task_is_kept_for_as_long_as_the_task_can_be_asked_for(tmp_path: Path) -> None:
    """Otherwise an approved call could run twice."""
    short = [{"use": "gates"}, {"use": "idempotency", "with": {"keep": "1m"}}]
    async with start_call_counter() as backend:
        documents = [each for each in approval_client(backend.port, rules=[LEADS]) if each["kind"] != "Pipeline"]
        written = write(tmp_path / "p", [*documents, document("Pipeline", "standard", {"call": short})])
        async with start_gateway(written, tmp_path / "data", people=PEOPLE) as gateway:
            task = await pay(gateway.caller(gated.ANA))
            await grant(gateway.caller(LIZ), approval_of(task))
            assert (await wait_for_task(gateway.caller(gated.ANA), task["taskId"]))["status"] == "completed"

    assert len(backend.requests) == 1
    assert kept_for(tmp_path) == pytest.approx(timedelta(days=1).total_seconds(), abs=60)


def kept_for(folder: Path) -> float:
    """Return the retention of the only key in the store, in seconds."""
    with sqlite3.connect(folder / "data" / "gateway.db") as store:
        found = store.execute("SELECT until - calls.created_at FROM claims JOIN calls ON calls.id = call_id").fetchall()
    [(microseconds,)] = found
    return float(microseconds / 1e6)
