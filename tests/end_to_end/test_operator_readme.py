"""What the README says about running the example, done as it says: who may, and who may not."""

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest
from desked import operated
from forked import Forking
from reloads import command
from served import ROOT

from gateway.identity.api_tokens import new_token

pytestmark = pytest.mark.anyio

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("**Changing what is served.**")[2].partition("\n**")[0]
STARTING, ASKING = (block.splitlines() for block in re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL))


async def status_for(url: str, token: str | None) -> int:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/status", headers=headers) as answer:
        return answer.status


async def test_operator_asks_and_reloads_and_nobody_else_does(forks: Forking, tmp_path: Path) -> None:
    assert STARTING[-1].split()[:3] == [
        "GATEWAY_ENVIRONMENT=operator",
        "GATEWAY_APPROVER_SHA256=DIGEST1",
        "GATEWAY_OPERATOR_SHA256=DIGEST2",
    ]
    commands = [line.removeprefix("gateway ") for line in ASKING if line.startswith("gateway ")]
    assert commands == ["status", "reload", "upstreams"]
    token, digest = new_token()
    with operated(forks, tmp_path, digest=digest) as gateway:
        env = {"GATEWAY_TOKEN": token}
        told = [await command(each, "--url", gateway.admin_url, env=env) for each in commands]
        refused = [await command(each, "--url", gateway.admin_url) for each in commands]
        statuses = [await status_for(gateway.admin_url, each) for each in (token, None, new_token()[0])]
        async with aiohttp.ClientSession(headers={"authorization": f"Bearer {token}"}) as session:
            path = "/v1/catalogues/finance/tools/price_quote/call"
            async with session.post(f"{gateway.url}{path}", json={"arguments": {"sku": "DESK-160"}}) as answer:
                called = answer.status
        await asyncio.to_thread(gateway.stop)

    assert [code for code, _ in told] == [0, 0, 0], told
    assert "revision" in told[0][1]
    assert "unchanged: revision" in told[1][1]
    assert "wiki" in told[2][1]
    assert [code for code, _ in refused] == [1, 1, 1]
    assert statuses == [200, 403, 401]
    assert called == 404
