"""Run a mutant as the gateway does: read and check it, and serve it in this process if it has no errors."""

import asyncio
import gc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from time import process_time
from traceback import format_exception
from typing import Any, Final, Literal

from gateway.app.app import AppInputs, ConfigInvalid, prepare_app, start_app
from gateway.app.asgi_apps import build_asgi_apps
from gateway.app.settings import Settings
from gateway.config.reports.renderers import ReportFormat, render_report
from gateway.errors import GatewayError
from gateway.registries.diagnostics import Diagnostic
from gateway.review.policy_tests import run_cases
from gateway.server.http.drain import ShutdownSignal
from tests.config.mutants import Mutant, base_files

TODAY: Final = date(2026, 11, 16)
FORMATS: Final[tuple[ReportFormat, ...]] = ("text", "json", "github", "sarif", "junit")
_VERSION: Final = "2026-07-28"
_LIST: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/list",
    "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": _VERSION,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    },
}


@dataclass(frozen=True)
class Outcome:
    """The result of a mutant. `failure` is the reason why the run itself failed: an unexpected exception."""

    kind: Literal["diagnostics", "refused", "valid", "served", "failed"]
    seconds: float
    failure: str = ""


class Workshop:
    """Copies of the two projects, in which one mutant at a time replaces some files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for base in ("example", "starter"):
            for path, data in base_files(base).items():
                self._write(folder / base / path, data)

    def environ(self) -> dict[str, str]:
        return {
            "GATEWAY_DATA_DIR": str(self._folder / "data"),
            "HELPDESK_TOKEN": "t" * 24,
            "GATEWAY_AUDIT_KEY": "k" * 64,
            "GATEWAY_CHAT_SECRET": "c" * 64,
            "LONG": "y" * 30_000,
        }

    @contextmanager
    def project(self, mutant: Mutant) -> Iterator[Path]:
        """The folder that contains the mutant until the block ends."""
        root = self._folder / mutant.base
        try:
            for path, data in mutant.changed.items():
                if data is None:
                    (root / path).unlink()
                else:
                    self._write(root / path, data)
            yield root
        finally:
            for path in mutant.changed:
                before = base_files(mutant.base).get(path)
                if before is None:
                    (root / path).unlink(missing_ok=True)
                else:
                    self._write(root / path, before)

    def run(self, mutant: Mutant, *, serve: bool) -> Outcome:
        began = process_time()
        try:
            with self.project(mutant) as root:
                kind = self._judge(mutant, root, serve=serve)
        except Exception as error:
            return Outcome("failed", process_time() - began, "".join(format_exception(error))[-4_000:])
        return Outcome(kind, process_time() - began)

    def _judge(
        self, mutant: Mutant, root: Path, *, serve: bool
    ) -> Literal["diagnostics", "refused", "valid", "served"]:
        settings = _settings(root, mutant.environment)
        try:
            ready = prepare_app(settings, environ=self.environ(), today=TODAY)
        except ConfigInvalid as invalid:
            return _reported(invalid.diagnostics, mutant.seed)
        except GatewayError:
            return "refused"
        run_cases(ready.access, ready.access.snapshot.cases)
        if not serve or _leaves_the_host(ready):
            return "valid"
        try:
            return asyncio.run(_serve(ready))
        except GatewayError:
            return "refused"

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@cache
def _settings(root: Path, environment: str | None) -> Settings:
    return Settings.model_validate({"configs": root, "environment": environment})


def _reported(diagnostics: Sequence[Diagnostic], seed: int) -> Literal["diagnostics"]:
    """Render the problems in a format that the seed chooses."""
    assert any(found.is_error for found in diagnostics), "a refusal says why"
    assert render_report(diagnostics, sources=lambda file: None, output=FORMATS[seed % len(FORMATS)])
    return "diagnostics"


def _leaves_the_host(ready: AppInputs) -> bool:
    """Whether a start would connect to other hosts or start programs: a mutant may name any."""
    documents = ready.assembled.loaded.documents
    kinds = {each.source.data["kind"] for each in documents}
    texts = json.dumps([each.source.data for each in documents], default=str)
    return "Upstream" in kinds or "example.com" in texts or ready.telemetry is not None


async def _serve(ready: AppInputs) -> Literal["served"]:
    """Start everything but the listeners, and list the tools of every catalogue over MCP."""
    async with start_app(ready) as gateway:
        apps = build_asgi_apps(gateway, base_url="http://127.0.0.1", stopping=ShutdownSignal())
        for catalogue in gateway.service.published.snapshot.catalogues.values():
            if "mcp" in catalogue.protocols:
                status, answer = await _ask(apps.data, f"{catalogue.path}/mcp")
                assert status in (200, 403, 404), (status, answer)
                assert status != 200 or isinstance(answer["result"]["tools"], list), answer
        await apps.close()
    return "served"


async def _ask(app: Any, path: str) -> tuple[int, Any]:
    headers = {
        "host": "127.0.0.1",
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": _VERSION,
        "mcp-method": "tools/list",
    }
    body = json.dumps(_LIST).encode()
    headers["content-length"] = str(len(body))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    requests = [{"type": "http.request", "body": body, "more_body": False}]
    answer: dict[str, Any] = {"status": 0, "body": b""}

    async def receive() -> dict[str, Any]:
        if not requests:
            await asyncio.Event().wait()
        return requests.pop()

    async def send(message: Mapping[str, Any]) -> None:
        answer["status"] = message.get("status", answer["status"])
        answer["body"] += message.get("body", b"")

    await app(scope, receive, send)
    return answer["status"], json.loads(answer["body"] or b"null")


def resident_bytes() -> int:
    """Memory that this process holds now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
