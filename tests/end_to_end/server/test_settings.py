"""Settings at startup: allowed Python packages, the overlay, and the project folder."""

import os
import subprocess
from pathlib import Path

import pytest

from gateway.app.app import ConfigInvalid, prepare_app
from gateway.app.settings import Settings
from gateway.app.startup_checks import StartRefused
from tests.support.gateways.commands import run_gateway
from tests.support.gateways.projects import (
    Person,
    base_documents,
    catalogue,
    document,
    environ_of,
    http_tool,
    start_gateway,
    tokens_of,
    write_project,
)

pytestmark = pytest.mark.anyio

ECHO = "tests.support.tools.echo_tools"
ANA = Person("ana", ("staff",))


def project(folder: Path, *, environments: tuple[str, ...] = ()) -> Path:
    tool = http_tool("echo", 1, backend={"type": "python", "entrypoint": f"{ECHO}:echo", "run": "loop"})
    documents = [*base_documents(["tokens"]), tokens_of([ANA]), tool, catalogue("desk", ["role:staff"], ["*"])]
    patch = {"target": {"kind": "Catalogue", "name": "desk"}, "merge": {"include": [{"tools": ["echo"]}]}}
    for index, name in enumerate(environments):
        documents.append(document("Overlay", f"overlay-{index}", {"environment": name, "patches": [patch]}))
    return write_project(folder / "p", documents, policy="p, role:staff, *, tool:*, invoke, internal, allow\n")


async def test_package_in_the_settings_is_enough(tmp_path: Path) -> None:
    async with start_gateway(project(tmp_path), tmp_path / "data", people=[ANA], python_packages=(ECHO,)) as gateway:
        reply = await gateway.caller(ANA).rest_call("desk", "echo", {"text": "hello"})

    assert reply.status == 200
    assert "hello" in str(reply.json)


async def test_package_that_only_the_environment_names_is_not_loaded(tmp_path: Path) -> None:
    settings = Settings.model_validate({"configs": project(tmp_path), "python_packages": ()})
    environ = {**os.environ, **environ_of([ANA]), "GATEWAY_PYTHON_PACKAGES": ECHO}

    with pytest.raises(ConfigInvalid) as refusal:
        prepare_app(settings, environ=environ)

    assert [each.code for each in refusal.value.diagnostics if each.is_error] == ["package-not-allowed"]


def start(folder: Path, environment: str | None, environments: tuple[str, ...], **environ: str) -> None:
    given = {
        "configs": project(folder, environments=environments),
        "python_packages": (ECHO,),
    }
    settings = Settings.model_validate({**given, "environment": environment})
    prepare_app(settings, environ={**environ_of([ANA]), "GATEWAY_DATA_DIR": str(folder / "data"), **environ})


@pytest.mark.parametrize(
    ("environment", "help"),
    [
        ("desc", "did you mean 'desk'? there are overlays for 'desk', 'prod'"),
        ("elsewhere", "there are overlays for 'desk', 'prod'"),
    ],
)
def test_environment_that_no_overlay_is_for_is_refused(tmp_path: Path, environment: str, help: str) -> None:
    with pytest.raises(StartRefused) as refusal:
        start(tmp_path, environment, ("prod", "desk"))

    assert refusal.value.message == f"there is no overlay for environment {environment!r}"
    assert refusal.value.help == help


def test_name_of_an_overlay_that_comes_from_a_variable_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(StartRefused) as refusal:
        start(tmp_path, "hunter3", ("${WHERE}",), WHERE="hunter2")

    assert refusal.value.help == "add one, or name none"


@pytest.mark.parametrize(
    ("environment", "environments"),
    [
        pytest.param("desk", ("prod", "desk"), id="there-is-one"),
        pytest.param("desc", (), id="there-are-no-overlays"),
        pytest.param(None, ("prod",), id="none-is-named"),
        pytest.param("", ("prod",), id="empty"),
    ],
)
def test_environment_is_fine_if_it_has_an_overlay_or_none_has(
    tmp_path: Path, environment: str | None, environments: tuple[str, ...]
) -> None:
    start(tmp_path, environment, environments)


def serve(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, **environ_of([ANA]), "GATEWAY_PYTHON_PACKAGES": ECHO}
    return run_gateway("serve", "--port", "0", "--admin-port", "0", *options, cwd=folder, env=env)


def test_misspelled_environment_is_one_line(tmp_path: Path) -> None:
    answer = serve(project(tmp_path, environments=("desk",)), "--environment", "desc")

    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == (
        "error: there is no overlay for environment 'desc'; did you mean 'desk'? there are overlays for 'desk'\n"
    )


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ("nosuch", "the folder does not exist"),
        ("empty", "the folder has no documents"),
        ("file", "the path is a file, not a folder"),
    ],
)
def test_folder_without_documents_is_reported_and_nothing_that_follows(
    tmp_path: Path, configs: str, words: str
) -> None:
    folder = project(tmp_path)
    (folder / "empty").mkdir()
    (folder / "file").write_text("", encoding="utf-8")

    answer = serve(folder, "--configs", configs)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == (
        f"error: {configs}: {words}; name the project with --configs or GATEWAY_CONFIGS; gateway init writes one\n"
    )
