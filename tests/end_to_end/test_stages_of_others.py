"""Stages that other packages bring for the phases of a turn, as callers meet them."""

from pathlib import Path

import pytest
from gated import ANA, PEOPLE, desk, write
from installed_packages import AT_MOST, Packages
from secured import counting, started

pytestmark = pytest.mark.anyio


async def test_documented_stage_of_a_dispatch_refuses_calls_over_both_wires(packages: Packages, tmp_path: Path) -> None:
    packages.install(AT_MOST, stage="at-most", factory="at_most", group="gateway.stages.dispatchInput")
    async with counting() as backend:
        documents = desk(backend.port)
        [pipeline] = [each for each in documents if each["kind"] == "Pipeline"]
        pipeline["spec"]["dispatchInput"] = [{"use": "at-most", "with": {"calls": 1}}]
        async with started(write(tmp_path / "p", documents), tmp_path / "data", people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            turn = str((await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"])
            called = {"arguments": {"text": "a"}, "turn": turn}
            first = await ana.rest("POST", "/v1/catalogues/desk/tools/plain/call", called)
            second = await ana.rest("POST", "/v1/catalogues/desk/tools/plain/call", called)
            third = await ana.modern_call("desk", "plain", {"text": "a"}, **{"gateway/turn": turn})

        assert (first.status, first.json["isError"]) == (200, False)
        assert (second.status, second.json["isError"]) == (403, True)
        assert "the turn has made all of its calls" in second.body.decode()
        assert "the turn has made all of its calls" in third.body.decode()
        assert len(backend.requests) == 1
