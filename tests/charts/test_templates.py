"""The rendered chart: with every set of values, for several versions of Kubernetes, and compared with golden files."""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.charts.helm import CASES, CHART, helm, of_kind, render_chart, rendered_text, with_packages
from tests.support.paths import ROOT

GOLDEN: Final = ROOT / "tests" / "golden" / "charts"
UPDATE: Final = "GATEWAY_UPDATE_GOLDEN"
VERSIONS: Final = ("1.28", "1.32", "1.37")
OF_OTHERS: Final = {"CiliumNetworkPolicy", "HTTPRoute", "PrometheusRule", "ServiceMonitor"}
"""Kinds without a schema in Kubernetes itself."""


@pytest.mark.parametrize("case", CASES)
def test_chart_passes_the_strict_linter(case: str) -> None:
    files = [word for path in CASES[case] for word in ("--values", str(path))]

    done = helm("lint", "--strict", CHART, *files)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "funcMap fail" not in done.stderr  # the linter only warns about errors that stop an installation


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_is_valid_for_kubernetes(version: str, tmp_path: Path) -> None:
    programs = with_packages("kubernetes-validate", "kubernetes-validate==1.37.0")
    files = []
    for case in CASES:
        files.append(tmp_path / f"{case}.yaml")
        files[-1].write_text(rendered_text(case, "--kube-version", version), encoding="utf-8")

    command = [str(programs / "kubernetes-validate"), "--strict", "-k", version, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert set(re.findall(r"Couldn't find schema for kind (\w+)", output)) == OF_OTHERS
    assert output.count(" passed for resource deployment/") == len(CASES)


@pytest.mark.parametrize("case", CASES)
def test_chart_renders_what_it_rendered_before(case: str) -> None:
    golden = GOLDEN / f"{case}.yaml"
    text = re.sub(r'(?m)^  key: "[A-Za-z0-9+/]{86}=="$', '  key: "RANDOM"', rendered_text(case))
    if os.environ.get(UPDATE):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")

    assert text == golden.read_text(encoding="utf-8"), f"run the test with {UPDATE}=1 and read the difference"


def test_project_in_the_values_replaces_pods_when_it_changes() -> None:
    annotations = [
        of_kind(render_chart("minimal", *more), "Deployment")[0]["spec"]["template"]["metadata"]["annotations"]
        for more in ([], [], ["--set", r"project.policies.roles\.csv=g\, user:ana\, role:member"])
    ]

    checksums = [each["checksum/project"] for each in annotations]
    assert checksums[0] == checksums[1] != checksums[2]


def test_files_arrive_byte_for_byte_under_their_paths() -> None:
    manifests = render_chart("minimal")
    given = yaml.safe_load(CASES["minimal"][0].read_text(encoding="utf-8"))["project"]
    pod = of_kind(manifests, "Deployment")[0]["spec"]["template"]["spec"]
    maps = {each["metadata"]["name"]: each["data"] for each in of_kind(manifests, "ConfigMap")}

    for folder in ("configs", "policies"):
        (volume,) = [each["configMap"] for each in pod["volumes"] if each["name"] == folder]
        mounted = {item["path"]: maps[volume["name"]][item["key"]] for item in volume["items"]}
        assert mounted == given[folder]


def test_environment_of_a_values_file_chooses_the_overlay() -> None:
    for case in ("dev", "prod"):
        env = of_kind(render_chart(case), "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["env"]

        assert {"name": "GATEWAY_ENVIRONMENT", "value": case} in env


@pytest.mark.parametrize(
    ("case", "url"),
    [
        ("minimal", "http://gateway.agents.svc"),
        ("production", "https://gateway.example.com"),
        ("prod", "https://gateway.example.com"),
        ("scaled", "https://gateway.example.com"),
        ("existing", "https://tools.example.com:8443"),
    ],
)
def test_public_url_is_the_one_callers_use(case: str, url: str) -> None:
    env = of_kind(render_chart(case), "Deployment")[0]["spec"]["template"]["spec"]["containers"][0]["env"]

    assert {"name": "GATEWAY_PUBLIC_URL", "value": url} in env


def test_sqlite_pods_never_overlap_and_others_roll() -> None:
    strategies = {case: of_kind(render_chart(case), "Deployment")[0]["spec"]["strategy"] for case in CASES}

    assert strategies["minimal"] == {"type": "Recreate"}
    assert strategies["replicated"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert {case for case, each in strategies.items() if each["type"] != "Recreate"} == {"replicated", "scaled"}


def test_migration_runs_before_others_only_where_there_is_a_database_server() -> None:
    jobs = {case: of_kind(render_chart(case), "Job") for case in CASES}

    assert {case for case, found in jobs.items() if found} == {"replicated", "scaled"}
    (job,) = jobs["scaled"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "storage",
        "migrate",
        "--connection-env",
        "GATEWAY_POSTGRES",
    ]


def test_long_release_names_still_make_valid_names() -> None:
    manifests = render_chart("image", release="a-release-with-a-name-that-is-as-long-as-helm-allows")

    assert max(len(each["metadata"]["name"]) for each in manifests) <= 63


@pytest.mark.parametrize(
    ("case", "more", "expected"),
    [
        ("minimal", (), {"helm test gateway"}),
        ("production", (), {"helm test gateway"}),
        ("ephemeral", (), {"storage.sqlite.persistent is false", "networkPolicy.enabled is false"}),
        ("replicated", (), {"helm test gateway"}),
        ("scaled", (), {"helm test gateway", "controller of your Gateway"}),
        ("minimal", ("ingress.host=a.example.com,ingress.enabled=true",), {"helm test", "controller of your Ingress"}),
    ],
)
def test_notes_name_what_to_know_and_no_more(case: str, more: tuple[str, ...], expected: set[str]) -> None:
    files = [word for path in CASES[case] for word in ("--values", str(path))]
    sets = [word for each in more for word in ("--set", each)]

    done = helm("install", "gateway", CHART, "--namespace", "agents", "--dry-run=client", *files, *sets)

    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("\nNOTES:\n")[2]
    assert [each for each in expected if each not in notes] == []
    assert notes.count("WARNING") + notes.count("controller") + notes.count("helm test") == len(expected)


def test_gitops_example_names_what_the_production_values_name() -> None:
    folder = CHART / "examples" / "gitops"
    application, kustomization = (
        yaml.safe_load((folder / name).read_text(encoding="utf-8"))
        for name in ("application.yaml", "kustomization.yaml")
    )
    values = yaml.safe_load(CASES["production"][0].read_text(encoding="utf-8"))
    made = {each["name"]: {Path(file).name for file in each["files"]} for each in kustomization["configMapGenerator"]}

    maps = values["project"]["configMaps"]
    assert set(made) == {maps["configs"]["name"], maps["policies"]["name"]}
    assert {item["key"] for item in maps["configs"]["items"]} == made[maps["configs"]["name"]]
    assert application["spec"]["sources"][0]["path"] == CHART.relative_to(ROOT).as_posix()
