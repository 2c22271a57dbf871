"""Turn stages from other packages, as callers see them."""

from pathlib import Path

import pytest

from tests.support.gateways.gate_projects import ANA, PEOPLE, approval_client, write
from tests.support.gateways.projects import start_call_counter, start_gateway
from tests.support.stage_packages import AT_MOST, StagePackages

pytestmark = pytest.mark.anyio


COUNTED = """
from pathlib import Path


def counted(options):
    async def stage(ctx, next):
        with Path(options["file"]).open("a") as file:
            file.write(ctx.turn_id + "\\n")
        await next()

    return stage
"""


async def test_output_of_a_turn_runs_once_over_every_wire(packages: StagePackages, tmp_path: Path) -> None:
    packages.install(COUNTED, stage="counted", factory="counted", group="gateway.stages.turnOutput")
    file = tmp_path / "turns.txt"
    file.touch()

    def ran() -> list[str]:
        return file.read_text().split()

    async with start_call_counter() as backend:
        documents = approval_client(backend.port)
        [pipeline] = [each for each in documents if each["kind"] == "Pipeline"]
        pipeline["spec"]["turnOutput"] = [{"use": "counted", "with": {"file": str(file)}}]
        project = write(tmp_path / "p", documents)
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            alone = (await ana.rest_call("desk", "plain", {"text": "a"})).json["turn"]
            modern = (await ana.modern_call("desk", "plain", {"text": "b"})).json["result"]["_meta"]["gateway/turn"]
            begun = ran()
            opened = str((await ana.rest("POST", "/v1/turns", {"catalogue": "desk"})).json["id"])
            for turn in (alone, modern, opened):
                called = {"arguments": {"text": "c"}, "turn": turn}
                assert (await ana.rest("POST", "/v1/catalogues/desk/tools/plain/call", called)).status == 200
                await ana.modern_call("desk", "plain", {"text": "d"}, **{"gateway/turn": turn})
            gone_on = ran()
        async with start_gateway(project, tmp_path / "data", people=PEOPLE) as gateway:
            ana = gateway.caller(ANA)
            for turn in (alone, modern, opened):
                for _ in range(2):
                    assert (await ana.rest("POST", f"/v1/turns/{turn}/end", {"as": "ack"})).status == 200

    assert begun == gone_on == [alone, modern]
    assert ran() == [alone, modern, opened]


async def test_documented_stage_of_a_dispatch_refuses_calls_over_both_wires(
    packages: StagePackages, tmp_path: Path
) -> None:
    packages.install(AT_MOST, stage="at-most", factory="at_most", group="gateway.stages.dispatchInput")
    async with start_call_counter() as backend:
        documents = approval_client(backend.port)
        [pipeline] = [each for each in documents if each["kind"] == "Pipeline"]
        pipeline["spec"]["dispatchInput"] = [{"use": "at-most", "with": {"calls": 1}}]
        async with start_gateway(write(tmp_path / "p", documents), tmp_path / "data", people=PEOPLE) as gateway:
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
