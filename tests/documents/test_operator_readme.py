"""The README's section on running the example works as written: operators are admitted, others are not."""

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest

from gateway.identity.credentials import new_api_token
from tests.support.gateways.example_project import start_example_with_operator
from tests.support.gateways.forkserver import ForkServer
from tests.support.gateways.reload_project import command
from tests.support.paths import ROOT

pytestmark = pytest.mark.anyio

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("**Changing what is served.**")[2].partition("\n**")[0]
STARTING, ASKING = (block.splitlines() for block in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL))


async def status_for(url: str, token: str | None) -> int:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/status", headers=headers) as answer:
        return answer.status


async def test_only_the_operator_gets_the_status_and_reloads(forks: ForkServer, tmp_path: Path) -> None:
    assert STARTING[-1].split()[:3] == [
        "GATEWAY_ENVIRONMENT=operator",
        "GATEWAY_APPROVER_SHA256=DIGEST1",
        "GATEWAY_OPERATOR_SHA256=DIGEST2",
    ]
    commands = [line.removeprefix("gateway ") for line in ASKING if line.startswith("gateway ")]
    assert commands == ["status", "reload", "upstreams"]
    token, digest = new_api_token()
    with start_example_with_operator(forks, tmp_path, digest=digest) as gateway:
        env = {"GATEWAY_TOKEN": token}
        outputs = [await command(each, "--url", gateway.admin_url, env=env) for each in commands]
        refused = [await command(each, "--url", gateway.admin_url) for each in commands]
        statuses = [await status_for(gateway.admin_url, each) for each in (token, None, new_api_token()[0])]
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session:
            path = "/v1/catalogues/finance/tools/price_quote/call"
            async with session.post(f"{gateway.url}{path}", json={"arguments": {"sku": "DESK-160"}}) as answer:
                called = answer.status
        await asyncio.to_thread(gateway.stop)

    assert [code for code, _ in outputs] == [0, 0, 0], outputs
    assert "revision" in outputs[0][1]
    assert "unchanged: revision" in outputs[1][1]
    assert "wiki" in outputs[2][1]
    assert [code for code, _ in refused] == [1, 1, 1]
    assert statuses == [200, 403, 401]
    assert called == 404
