"""The decision log of a gateway is kept for ever, or as long as its Storage says; what is left can be verified."""

import asyncio
from pathlib import Path

import pytest
from gated import ANA, PEOPLE, desk, pay, write
from secured import counting, started

from gateway.audit.verifying import verify
from gateway.storage.audit_rows import AuditRows

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("retain", "is_shortened"), [(None, False), ({"audit": "1h"}, False), ({"audit": "1ms"}, True)]
)
async def test_log_is_there_for_as_long_as_it_is_retained(
    retain: dict[str, str] | None, is_shortened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.runtime.shortening._EVERY", 0.1)
    monkeypatch.setattr("gateway.runtime.shortening._AGAIN", 0.05)
    async with counting() as backend:
        documents = desk(backend.port)
        [storage] = [each for each in documents if each["kind"] == "Storage"]
        storage["spec"] |= {} if retain is None else {"retain": retain}
        async with started(write(tmp_path / "p", documents), tmp_path / "data", people=PEOPLE) as gateway:
            for text in ("a", "b", "c"):
                await pay(gateway.caller(ANA), text)
            await asyncio.sleep(0.5)
            await pay(gateway.caller(ANA), "d")

    with AuditRows(next((tmp_path / "data").rglob("gateway.db"))) as rows:
        report = verify(rows)
        settled = [row for row in rows if b'"call-settled"' in row.body]
    assert report.is_good, report.findings
    assert any("pruned" in each for each in report.notes) is is_shortened
    assert (len(settled) < 4) is is_shortened
