"""A gateway retains its decision log forever or as configured in its Storage; the remaining entries still verify."""

import asyncio
from pathlib import Path

import pytest

from gateway.audit.verification import verify
from gateway.storage.sql.read_only.read_only_store import SqliteAuditReader
from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, pay, write
from tests.support.gateways.projects import start_call_counter, start_gateway

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("retain", "is_shortened"), [(None, False), ({"audit": "1h"}, False), ({"audit": "1ms"}, True)]
)
async def test_log_is_there_for_as_long_as_it_is_retained(
    retain: dict[str, str] | None, is_shortened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.app.jobs.audit_retention._EVERY", 0.1)
    monkeypatch.setattr("gateway.app.jobs.audit_retention._AGAIN", 0.05)
    async with start_call_counter() as backend:
        documents = approval_client(backend.port)
        [storage] = [each for each in documents if each["kind"] == "Storage"]
        storage["spec"] |= {} if retain is None else {"retain": retain}
        async with start_gateway(write(tmp_path / "p", documents), tmp_path / "data", people=PEOPLE) as gateway:
            for text in ("a", "b", "c"):
                await pay(gateway.caller(ANA), text)
            await asyncio.sleep(0.5)
            await pay(gateway.caller(ANA), "d")

    with SqliteAuditReader(next((tmp_path / "data").rglob("gateway.db"))) as rows:
        report = verify(rows)
        settled = [row for row in rows if b'"call-settled"' in row.body]
    assert report.is_good, report.findings
    assert any("pruned" in each for each in report.notes) is is_shortened
    assert (len(settled) < 4) is is_shortened
