"""Startup warnings: missing secrets that calls will need."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    document,
    http_tool,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))


def with_secret(name: str, secret: dict[str, str], **more: Any) -> dict[str, Any]:
    backend = {"type": "http", "method": "GET", "url": "http://127.0.0.1:1/x", "networks": ["127.0.0.0/8"]}
    return http_tool(name, 1, backend={**backend, "auth": {"scheme": "bearer", "token": secret}}, **more)


def project(folder: Path, *tools: dict[str, Any]) -> Path:
    unused = document("IdentityProvider", "others", {"type": "token", "tokens": [token({"fromEnv": "NOT_IN_USE"})]})
    documents = [
        *base_documents(["tokens"]),
        tokens_of([ANA]),
        unused,
        *tools,
        catalogue("desk", ["role:staff"], ["*"]),
    ]
    return write_project(folder / "p", documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")


def token(secret: dict[str, str]) -> dict[str, Any]:
    return {"subject": "user:bo", "roles": ["role:staff"], "sha256": secret, "expires": "2999-12-31"}


async def warnings_of(folder: Path, *tools: dict[str, Any], environ: dict[str, str] | None = None) -> list[str]:
    configs = project(folder, *tools)
    async with start_gateway(configs, folder / "data", people=[ANA], environ=environ) as gateway:
        return [each for each in gateway.running.warnings if "calls that need it fail" in each]


async def test_missing_secret_is_reported_once_at_its_first_place(tmp_path: Path) -> None:
    tools = [with_secret("ask", {"fromEnv": "SHARED"}), with_secret("tell", {"fromEnv": "SHARED"})]
    tools += [with_secret("read", {"fromFile": "nowhere.key"})]

    by_variable, by_file = await warnings_of(tmp_path, *tools)

    assert "configs/all.yaml:" in by_variable
    assert by_variable.endswith(": the environment variable SHARED is not set: calls that need it fail")
    assert "nowhere.key cannot be read" in by_file
    text = (tmp_path / "p" / "configs" / "all.yaml").read_text(encoding="utf-8")
    first = 1 + text[: text.index("SHARED")].count("\n")
    assert f"all.yaml:{first}:" in by_variable


async def test_secret_that_is_there_is_not_spoken_of(tmp_path: Path) -> None:
    assert await warnings_of(tmp_path, with_secret("ask", {"fromEnv": "SHARED"}), environ={"SHARED": "x" * 32}) == []


async def test_tools_that_no_caller_can_call_need_nothing(tmp_path: Path) -> None:
    tools = [http_tool("echo", 1), with_secret("later", {"fromEnv": "LATER"}, lifecycle="draft")]

    assert await warnings_of(tmp_path, *tools) == []
