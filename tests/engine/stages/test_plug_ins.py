"""Stages of other packages: found by their entry point, checked before a call arrives."""

import shutil
from datetime import date, timedelta
from pathlib import Path

import pytest

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.engine.stages.factory import (
    InvalidStage,
    StageState,
    call_stages,
    chain_stages,
    load_call_stage,
    load_phase_stage,
)
from gateway.registries.diagnostics import Position
from gateway.registries.effective_trust import EffectiveTrust, Tier
from gateway.registries.pipeline_stages import BUILT_IN_STAGES, Phase, add_plug_in_stages, check_stage_order
from gateway.registries.snapshot import DeclaredTool
from tests.engine.stages.sample_calls import Backend, a_call
from tests.support.paths import ROOT
from tests.support.stage_packages import FOOTER, StagePackages

HERE = Position("a.yaml", 1, 1)
TRUST = EffectiveTrust(Tier("internal", 10, "first-party"), frozenset(), trusted=False, callable=True)
LOOK = DeclaredTool("look", "Looks.", TRUST, "http", HERE)


def a_project(tmp_path: Path, *, call: str) -> ProjectFolders:
    """The small project with other `call` stages."""
    copied = tmp_path / "project"
    shutil.copytree(ROOT / "tests" / "projects" / "small", copied)
    gateway = copied / "configs" / "gateway.yaml"
    text = gateway.read_text(encoding="utf-8")
    changed = text.replace("    - {use: gates}\n    - {use: timeout, with: {after: 30s}}\n", call)
    assert changed != text
    gateway.write_text(changed, encoding="utf-8")
    return ProjectFolders.from_folder(copied)


def assembled(project: ProjectFolders) -> LoadedProject:
    return load_project(project, environ={}, today=date(2026, 11, 1))


WITH_FOOTER = "    - {use: gates}\n    - {use: timeout, with: {after: 30s}}\n    - {use: footer, with: {line: Bye.}}\n"


@pytest.mark.anyio
async def test_documented_stage_works_from_yaml_to_a_call(packages: StagePackages, tmp_path: Path) -> None:
    packages.install(FOOTER)

    found = assembled(a_project(tmp_path, call=WITH_FOOTER))

    assert found.access is not None, found.diagnostics
    run = chain_stages(
        call_stages(found.access.snapshot.pipelines["standard"], LOOK, shared=StageState()), Backend("Hello.")
    )
    assert await run(a_call()) == "Hello.\nBye."


def test_options_of_built_in_stages_are_linked_as_their_models_read_them(tmp_path: Path) -> None:
    call = "    - {use: gates}\n    - {use: cache, with: {for: 90s}}\n    - {use: retry, with: {attempts: 1}}\n"

    found = assembled(a_project(tmp_path, call=call))

    assert found.access is not None, found.diagnostics
    uses = found.access.snapshot.pipelines["standard"].phases["call"]
    assert {use.name: dict(use.options) for use in uses} == {
        "gates": {},
        "cache": {"for": timedelta(seconds=90), "by": ("subject", "arguments")},
        "retry": {
            "attempts": 1,
            "causes": ("unavailable",),
            "unlessFlags": (),
            "delay": timedelta(milliseconds=200),
        },
    }


def test_stage_of_a_missing_package_is_unknown(tmp_path: Path) -> None:
    found = assembled(a_project(tmp_path, call=WITH_FOOTER))

    assert [each.code for each in found.diagnostics if each.is_error] == ["unknown-stage"]


def test_plug_in_stands_inside_the_gates(packages: StagePackages, tmp_path: Path) -> None:
    packages.install(FOOTER)

    found = assembled(a_project(tmp_path, call="    - {use: footer, with: {line: Bye.}}\n    - {use: gates}\n"))

    assert [(each.code, each.message) for each in found.diagnostics if each.is_error] == [
        ("stage-order", "stage 'gates' must come before 'footer'")
    ]


def test_plug_in_replaces_no_built_in_stage() -> None:
    known = add_plug_in_stages({"call": ["gates", "timeout", "footer"], "turnInput": ["redact"]})

    assert known["timeout"] == BUILT_IN_STAGES["timeout"]
    assert known["redact"] == BUILT_IN_STAGES["redact"]
    assert known["gates"].outside == BUILT_IN_STAGES["gates"].outside | {"footer"}
    assert check_stage_order("call", ["gates", "timeout"], known) == []


@pytest.mark.parametrize(("phase", "other"), [("call", "turnInput"), ("turnInput", "dispatchOutput")])
def test_plug_in_belongs_in_the_phase_that_its_package_declares(phase: Phase, other: Phase) -> None:
    known = add_plug_in_stages({phase: ["footer"]})

    [problem] = check_stage_order(other, ["footer"], known)

    assert problem.message == f"stage 'footer' belongs in {phase}, not in {other}"
    assert check_stage_order(phase, ["footer"], known) == []


def test_broken_stage_of_a_phase_stops_the_start(packages: StagePackages) -> None:
    packages.install("def at_most(options): return 1", factory="at_most", group="gateway.stages.turnOutput")

    with pytest.raises(InvalidStage, match="stage 'footer' of acme-stages returns int, not a stage"):
        load_phase_stage("footer", {}, phase="turnOutput")
    with pytest.raises(InvalidStage, match="there is no stage 'footer'"):
        load_phase_stage("footer", {}, phase="turnInput")


@pytest.mark.parametrize(
    ("code", "factory", "message"),
    [
        ("import nowhere_at_all", "footer", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def foot(options, tool): ...", "footer", "cannot be loaded: AttributeError: module 'acme_stages' has no "),
        ("footer = 1", "footer", "cannot be created for look: TypeError: 'int' object is not callable"),
        (
            "def footer(options, tool): raise ValueError('line is missing\\nin options')",
            "footer",
            "cannot be created for look: ValueError: line is missing",
        ),
        ("def footer(options, tool): return 'x'", "footer", "returns str, not a stage"),
    ],
    ids=["import fails", "no such name", "no factory", "options refused", "no stage"],
)
def test_broken_plug_in_is_reported_when_the_chain_is_built(
    packages: StagePackages, code: str, factory: str, message: str
) -> None:
    packages.install(code, factory=factory)

    with pytest.raises(InvalidStage) as raised:
        load_call_stage("footer", {}, tool=LOOK)

    assert raised.value.message.startswith(f"stage 'footer' of acme-stages {message}")
    assert "\n" not in raised.value.message


def test_stage_that_is_not_installed_is_reported() -> None:
    with pytest.raises(InvalidStage, match="there is no stage 'compress'"):
        load_call_stage("compress", {}, tool=LOOK)


def test_two_packages_cannot_bring_one_stage(packages: StagePackages) -> None:
    packages.install(FOOTER)
    packages.install(FOOTER, name="other-stages")

    with pytest.raises(InvalidStage, match="stage 'footer' is provided by acme-stages and other-stages"):
        load_call_stage("footer", {"line": "x"}, tool=LOOK)
