"""What the stage `idempotency` of a pipeline says about keys: how long they count, and how services are told them."""

import sqlite3
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import gated
import pytest
from gated import LIZ, PEOPLE, desk, grant, write
from secured import Person, catalogue, counting, document, frame, http_tool, started, tokens_of, write_project
from test_gates_tasks import LEADS, approval_of, pay, settled

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))
POLICY = "p, role:staff, *, tool:*, invoke, internal, allow\n"


def project(folder: Path, port: int, *, stage: Mapping[str, Any] | None) -> Path:
    stages = [{"use": "gates"}, *([] if stage is None else [{"use": "idempotency", "with": dict(stage)}])]
    documents = [*frame(["tokens"], pipeline="keyed"), tokens_of([ANA]), http_tool("pay", port, flags=["writes"])]
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
async def test_key_is_kept_and_passed_on_as_the_pipeline_says(
    stage: Mapping[str, Any] | None, kept: timedelta, header: str, tmp_path: Path
) -> None:
    async with counting() as backend:
        written = project(tmp_path, backend.port, stage=stage)
        async with started(written, tmp_path / "data", people=[ANA]) as gateway:
            caller = gateway.caller(ANA)
            for _ in range(2):
                called = await caller.rest_call("desk", "pay", {"text": "x"}, idempotency_key="k1")
                assert called.json["isError"] is False

        assert len(backend.requests) == 1
        told = {name.lower(): value for name, value in backend.requests[0][1].items()}
        assert [name for name, value in told.items() if value == "k1"] == [header]
    assert kept_for(tmp_path) == pytest.approx(kept.total_seconds(), abs=60)


async def test_key_of_a_task_is_kept_for_as_long_as_the_task_can_be_asked_for(tmp_path: Path) -> None:
    """Or the call that people agreed to could be made twice."""
    short = [{"use": "gates"}, {"use": "idempotency", "with": {"keep": "1m"}}]
    async with counting() as backend:
        documents = [each for each in desk(backend.port, rules=[LEADS]) if each["kind"] != "Pipeline"]
        written = write(tmp_path / "p", [*documents, document("Pipeline", "standard", {"call": short})])
        async with started(written, tmp_path / "data", people=PEOPLE) as gateway:
            task = await pay(gateway.caller(gated.ANA))
            await grant(gateway.caller(LIZ), approval_of(task))
            assert (await settled(gateway.caller(gated.ANA), task["taskId"]))["status"] == "completed"

    assert len(backend.requests) == 1
    assert kept_for(tmp_path) == pytest.approx(timedelta(days=1).total_seconds(), abs=60)


def kept_for(folder: Path) -> float:
    """Seconds for which the one key in the store is remembered."""
    with sqlite3.connect(folder / "data" / "gateway.db") as store:
        found = store.execute("SELECT until - calls.created_at FROM claims JOIN calls ON calls.id = call_id").fetchall()
    [(microseconds,)] = found
    return float(microseconds / 1e6)
