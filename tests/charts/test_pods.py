"""Starts and tests a gateway as the manifests describe, without a cluster."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.charts.helm import of_kind, render_chart
from tests.charts.pods import POD_IP, SECRETS, SERVED, TESTED, TOKEN, LocalCluster, free_ports, get_json


@pytest.fixture(scope="module", params=["minimal", "prod"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster in which the gateway's pod is up."""
    found = LocalCluster(tmp_path_factory.mktemp("cluster"), render_chart(request.param), SECRETS)
    data, admin = free_ports()
    found.services.update({"gateway": data, "gateway-admin": admin})
    with found.started(SERVED, "gateway", GATEWAY_PORT=str(data), GATEWAY_ADMIN_PORT=str(admin)) as process:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if line.startswith("try: "):
                break
        else:
            raise AssertionError(f"the gateway did not start:\n{output}")
        yield found
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_probes_of_the_pod_are_answered_at_its_address(cluster: LocalCluster) -> None:
    (container,) = of_kind(cluster.manifests, "Deployment")[0]["spec"]["template"]["spec"]["containers"]

    for kind in ("startup", "readiness", "liveness"):
        path = container[f"{kind}Probe"]["httpGet"]["path"]
        assert get_json(POD_IP, cluster.services["gateway-admin"], path)[0] == 200


def test_undeclared_hosts_are_turned_away(cluster: LocalCluster) -> None:
    data, admin = cluster.services["gateway"], cluster.services["gateway-admin"]

    assert get_json("127.0.0.1", data, "/livez", host="gateway")[0] == 200
    assert get_json("127.0.0.1", data, "/livez", host="gateway.agents.svc")[0] == 200
    assert get_json("127.0.0.1", admin, "/livez", host="gateway-admin.agents.svc")[0] == 200
    assert get_json("127.0.0.1", data, "/livez", host="evil.example.com")[0] == 421
    assert get_json("127.0.0.1", admin, "/livez", host="evil.example.com")[0] == 421
    assert get_json("127.0.0.1", data, "/livez", host=POD_IP)[0] == 421


def test_helm_test_checks_the_project_and_calls_a_tool(cluster: LocalCluster) -> None:
    checked, called = cluster.run(TESTED, "check"), cluster.run(TESTED, "call")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert called.returncode == 0, called.stdout + called.stderr
    assert "ready: 200" in called.stdout
    assert "call: 200" in called.stdout
    assert TOKEN not in called.stdout + called.stderr


def test_helm_test_fails_for_an_unknown_caller(cluster: LocalCluster) -> None:
    wrong = replace(cluster, secrets={"gateway-callers": {**SECRETS["gateway-callers"], "ana-token": "agw_wrong"}})

    called = wrong.run(TESTED, "call")

    assert called.returncode == 1
    assert "call: 401" in called.stdout


def test_records_are_in_a_folder_that_is_the_gateways_own(cluster: LocalCluster) -> None:
    folder = Path(cluster.here("/data/gateway"))

    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "gateway.db").exists()


def test_helm_test_names_the_line_of_a_broken_project(tmp_path: Path) -> None:
    broken = render_chart("minimal", "--set", r"project.configs.tools/more\.yaml=kind: Toll")
    cluster = LocalCluster(tmp_path, broken, SECRETS)

    checked = cluster.run(TESTED, "check")

    assert checked.returncode == 1
    assert "tools/more.yaml" in checked.stdout + checked.stderr
