"""Python packages that may be run: what the settings say, and nothing else."""

import os
from pathlib import Path

import pytest
from secured import Person, catalogue, environ_of, frame, http_tool, started, tokens_of, write_project

from gateway.runtime.running import ConfigInvalid, prepared
from gateway.runtime.settings import Settings

pytestmark = pytest.mark.anyio

ANA = Person("ana", ("staff",))


def project(folder: Path) -> Path:
    tool = http_tool("echo", 1, backend={"type": "python", "entrypoint": "echoing:echo", "run": "loop"})
    documents = [*frame(["tokens"]), tokens_of([ANA]), tool, catalogue("desk", ["role:staff"], ["*"])]
    return write_project(folder / "p", documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")


async def test_package_in_the_settings_is_enough(tmp_path: Path) -> None:
    async with started(project(tmp_path), tmp_path / "data", people=[ANA], python_packages=("echoing",)) as gateway:
        reply = await gateway.caller(ANA).rest_call("desk", "echo", {"text": "hello"})

    assert reply.status == 200
    assert "hello" in str(reply.json)


async def test_package_that_only_the_environment_names_is_not_loaded(tmp_path: Path) -> None:
    settings = Settings.model_validate({"configs": project(tmp_path), "python_packages": ()})
    environ = {**os.environ, **environ_of([ANA]), "GATEWAY_PYTHON_PACKAGES": "echoing"}

    with pytest.raises(ConfigInvalid) as refusal:
        prepared(settings, environ=environ)

    assert [each.code for each in refusal.value.diagnostics if each.is_error] == ["package-not-allowed"]
