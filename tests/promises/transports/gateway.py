"""The gateway of the promise tests, without sockets, and the outside view of it: records, turns, events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gateway.app.app import App, run_app
from gateway.app.asgi_apps import build_asgi_apps
from gateway.app.settings import Settings
from gateway.server.http.drain import ShutdownSignal
from tests.promises.transports.asgi_client import AsgiReply, ask

PROJECT = Path(__file__).parent / "project"
TOKENS = {name: f"the-token-of-{name}-for-tests" for name in ("ana", "kim")}
ENVIRON = {
    "GATEWAY_PYTHON_PACKAGES": "tests.promises.transports.tools",
    **{f"{name.upper()}_TOKEN_SHA256": sha256(token.encode()).hexdigest() for name, token in TOKENS.items()},
}


@dataclass(frozen=True)
class Gateway:
    app: Any
    running: App
    folder: Path

    async def ask(self, method: str, target: str, body: bytes = b"", *, who: str = "ana", **more: Any) -> AsgiReply:
        headers = {"host": "localhost", "authorization": f"Bearer {TOKENS[who]}", **more.pop("headers", {})}
        if body:
            headers = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        return await ask(self.app, method, target, headers=headers, body=body, **more)

    async def get(self, target: str, *, who: str = "ana") -> Any:
        heard = await self.ask("GET", target, who=who)
        assert heard.status == 200, heard.body
        return heard.json

    async def record(self, id: str, turn: str) -> dict[str, Any]:
        found: dict[str, Any] = await self.get(f"/v1/calls/{quote(id)}?turn={quote(turn)}")
        return found

    async def records(self, turn: str) -> list[dict[str, Any]]:
        """Return the records of a turn, oldest first."""
        found: list[dict[str, Any]] = (await self.get(f"/v1/turns/{turn}/calls"))["calls"]
        return found[::-1]

    async def prompt(self, turn: str) -> list[dict[str, Any]]:
        """Return the messages that a model would read next."""
        messages: list[dict[str, Any]] = (await self.get(f"/v1/turns/{turn}/render"))["messages"]
        return messages

    async def shown(self, turn: str, id: str) -> list[dict[str, Any]]:
        """Return the blocks that a model would read of one call."""
        (found,) = [each for each in await self.prompt(turn) if each.get("tool_call_id") == id]
        blocks: list[dict[str, Any]] = found["content"]
        return blocks

    async def end(self, turn: str, ending: str = "ack") -> Any:
        heard = await self.ask("POST", f"/v1/turns/{turn}/end", json.dumps({"as": ending}).encode())
        assert heard.status == 200, heard.body
        return heard.json

    @asynccontextmanager
    async def following(self, turn: str) -> AsyncIterator[AsgiReply]:
        """Follow the events of a turn."""
        heard = AsgiReply()
        task = asyncio.create_task(self.ask("GET", f"/v1/turns/{turn}/events", heard=heard))
        try:
            while not heard.status:
                await asyncio.sleep(0)
            yield heard
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def kept(self) -> bytes:
        """Return all bytes on disk."""
        return b"".join(file.read_bytes() for file in sorted(self.folder.rglob("*")) if file.is_file())


@asynccontextmanager
async def gateway_of(folder: Path, project: Path = PROJECT) -> AsyncIterator[Gateway]:
    # Hundreds of calls are refused in a minute here; record each of them.
    fields = {"configs": project, "python_packages": ("tests.promises.transports.tools",), "max_refusals": 1_000_000}
    settings = Settings.model_validate(fields)
    environ = {**ENVIRON, "GATEWAY_DATA_DIR": str(folder)}
    async with run_app(settings, environ=environ) as started:
        assert started.unavailable_tools == ()
        apps = build_asgi_apps(started, base_url="http://localhost", stopping=ShutdownSignal())
        try:
            yield Gateway(apps.data, started, folder)
        finally:
            await apps.close()
