"""Stages of other packages: found by their entry point, checked before a call arrives."""

import shutil
from datetime import date, timedelta
from pathlib import Path

import pytest
from installed_packages import FOOTER, Packages
from middleware_calls import Backend, a_call

from gateway.assembly import Assembled, Project, assemble
from gateway.governance.diagnostics import Position
from gateway.governance.stages import BUILT_IN, Phase, check_phase, with_plug_ins
from gateway.governance.trust import EffectiveTrust, Tier
from gateway.middleware.build import SharedState, call_stages
from gateway.middleware.chain import chained
from gateway.middleware.plug_ins import StageUnusable, installed_phase_stage, installed_stage
from gateway.snapshot import DeclaredTool

ROOT = Path(__file__).parent.parent.parent
HERE = Position("a.yaml", 1, 1)
TRUST = EffectiveTrust(Tier("internal", 10, "first-party"), frozenset(), trusted=False, callable=True)
LOOK = DeclaredTool("look", "Looks.", TRUST, "http", HERE)


def a_project(tmp_path: Path, *, call: str) -> Project:
    """The small project with other `call` stages."""
    copied = tmp_path / "project"
    shutil.copytree(ROOT / "tests" / "projects" / "small", copied)
    gateway = copied / "configs" / "gateway.yaml"
    text = gateway.read_text(encoding="utf-8")
    changed = text.replace("    - {use: gates}\n    - {use: timeout, with: {after: 30s}}\n", call)
    assert changed != text
    gateway.write_text(changed, encoding="utf-8")
    return Project.at(copied)


def assembled(project: Project) -> Assembled:
    return assemble(project, environ={}, today=date(2026, 11, 1))


WITH_FOOTER = "    - {use: gates}\n    - {use: timeout, with: {after: 30s}}\n    - {use: footer, with: {line: Bye.}}\n"


@pytest.mark.anyio
async def test_documented_stage_works_from_yaml_to_a_call(packages: Packages, tmp_path: Path) -> None:
    packages.install(FOOTER)

    found = assembled(a_project(tmp_path, call=WITH_FOOTER))

    assert found.access is not None, found.diagnostics
    run = chained(
        call_stages(found.access.snapshot.pipelines["standard"], LOOK, shared=SharedState()), Backend("Hello.")
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


def test_stage_that_nobody_installed_is_unknown(tmp_path: Path) -> None:
    found = assembled(a_project(tmp_path, call=WITH_FOOTER))

    assert [each.code for each in found.diagnostics if each.is_error] == ["unknown-stage"]


def test_plug_in_stands_inside_the_gates(packages: Packages, tmp_path: Path) -> None:
    packages.install(FOOTER)

    found = assembled(a_project(tmp_path, call="    - {use: footer, with: {line: Bye.}}\n    - {use: gates}\n"))

    assert [(each.code, each.message) for each in found.diagnostics if each.is_error] == [
        ("stage-order", "stage 'gates' must stand before 'footer'")
    ]


def test_plug_in_replaces_no_built_in_stage() -> None:
    known = with_plug_ins({"call": ["gates", "timeout", "footer"], "turnInput": ["redact"]})

    assert known["timeout"] == BUILT_IN["timeout"]
    assert known["redact"] == BUILT_IN["redact"]
    assert known["gates"].outside == BUILT_IN["gates"].outside | {"footer"}
    assert check_phase("call", ["gates", "timeout"], known) == []


@pytest.mark.parametrize(("phase", "other"), [("call", "turnInput"), ("turnInput", "dispatchOutput")])
def test_plug_in_belongs_in_the_phase_that_its_package_says(phase: Phase, other: Phase) -> None:
    known = with_plug_ins({phase: ["footer"]})

    [problem] = check_phase(other, ["footer"], known)

    assert problem.message == f"stage 'footer' belongs in {phase}, not in {other}"
    assert check_phase(phase, ["footer"], known) == []


def test_broken_stage_of_a_phase_stops_the_start(packages: Packages) -> None:
    packages.install("def at_most(options): return 1", factory="at_most", group="gateway.stages.turnOutput")

    with pytest.raises(StageUnusable, match="stage 'footer' of acme-stages gives int, which is no stage"):
        installed_phase_stage("footer", {}, phase="turnOutput")
    with pytest.raises(StageUnusable, match="there is no stage 'footer'"):
        installed_phase_stage("footer", {}, phase="turnInput")


@pytest.mark.parametrize(
    ("code", "factory", "message"),
    [
        ("import nowhere_at_all", "footer", "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def foot(options, tool): ...", "footer", "cannot be loaded: AttributeError: module 'acme_stages' has no "),
        ("footer = 1", "footer", "cannot be made for look: TypeError: 'int' object is not callable"),
        (
            "def footer(options, tool): raise ValueError('line is missing\\nin options')",
            "footer",
            "cannot be made for look: ValueError: line is missing",
        ),
        ("def footer(options, tool): return 'x'", "footer", "gives str, which is no stage"),
    ],
    ids=["import fails", "no such name", "no factory", "options refused", "no stage"],
)
def test_broken_plug_in_is_told_when_the_chain_is_built(
    packages: Packages, code: str, factory: str, message: str
) -> None:
    packages.install(code, factory=factory)

    with pytest.raises(StageUnusable) as raised:
        installed_stage("footer", {}, tool=LOOK)

    assert raised.value.message.startswith(f"stage 'footer' of acme-stages {message}")
    assert "\n" not in raised.value.message


def test_stage_that_is_not_installed_is_told() -> None:
    with pytest.raises(StageUnusable, match="there is no stage 'compress'"):
        installed_stage("compress", {}, tool=LOOK)


def test_two_packages_cannot_bring_one_stage(packages: Packages) -> None:
    packages.install(FOOTER)
    packages.install(FOOTER, name="other-stages")

    with pytest.raises(StageUnusable, match="stage 'footer' is brought by acme-stages and other-stages"):
        installed_stage("footer", {"line": "x"}, tool=LOOK)
