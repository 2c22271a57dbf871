"""Another revision while turns are open: what it hides is hidden in them, too."""

import shutil
from pathlib import Path

import pytest
from wire_gateway import PROJECT, gateway_of
from wire_reading import query
from wire_talks import TALKS, Talk

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("wire", TALKS, ids=lambda wire: str(wire.wire))
async def test_redaction_that_comes_later_reaches_open_turns(tmp_path: Path, wire: type[Talk]) -> None:
    unmasked = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    document = unmasked / "configs" / "gateway.yaml"
    document.write_text(document.read_text("utf-8").replace(', redact: ["$.password"]', ""), "utf-8")

    async with gateway_of(tmp_path / "one", unmasked) as gateway, gateway_of(tmp_path / "other") as masked:
        talk = wire(gateway)
        said = await talk.call("staff")
        gateway.running.service.publish(masked.running.service.published)
        asked = await query(talk, "artifact_cat", said)
        prompt = str(await gateway.prompt(said.turn))

    assert "hunter2" in said.text
    assert "hunter2" not in asked.text
    assert "hunter2" not in prompt
