"""A new revision while turns are open: tools it hides are hidden in them, too."""

import shutil
from pathlib import Path

import pytest

from tests.promises.transports.conversations import TALKS, Conversation
from tests.promises.transports.gateway import PROJECT, gateway_of
from tests.promises.transports.readers import query

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("wire", TALKS, ids=lambda wire: str(wire.wire))
async def test_redaction_that_comes_later_reaches_open_turns(tmp_path: Path, wire: type[Conversation]) -> None:
    unmasked = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    document = unmasked / "configs" / "gateway.yaml"
    document.write_text(document.read_text("utf-8").replace(', redact: ["$.password"]', ""), "utf-8")

    async with gateway_of(tmp_path / "one", unmasked) as gateway, gateway_of(tmp_path / "other") as masked:
        talk = wire(gateway)
        reply = await talk.call("staff")
        gateway.running.service.publish(masked.running.service.published)
        asked = await query(talk, "artifact_cat", reply)
        prompt = str(await gateway.prompt(reply.turn))

    assert "hunter2" in reply.text
    assert "hunter2" not in asked.text
    assert "hunter2" not in prompt
