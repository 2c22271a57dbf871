"""What no pod of the chart may be or have, for any values."""

import re
from base64 import b64decode
from typing import Any

import pytest

from tests.charts.helm import CASES, containers_of, of_kind, pods_of, render_chart

pytestmark = pytest.mark.parametrize("case", CASES)
SECRETS = re.compile(r"(?i)(token|secret|password|key|sha256|connection|postgres)")


def containers(case: str) -> dict[str, Any]:
    return {
        f"{name}/{container['name']}": (pod, container)
        for name, pod in pods_of(render_chart(case)).items()
        for container in containers_of(pod)
    }


def test_containers_gain_nothing_and_keep_nothing(case: str) -> None:
    for name, (_, container) in containers(case).items():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }, name


def test_pods_share_nothing_with_their_node(case: str) -> None:
    for name, pod in pods_of(render_chart(case)).items():
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert security.get("runAsUser", 1) > 0, name
        assert pod["automountServiceAccountToken"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & set(pod), name
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}, name
        assert not any(port.get("hostPort") for each in containers_of(pod) for port in each.get("ports", [])), name


def test_images_are_never_the_latest(case: str) -> None:
    for name, (_, container) in containers(case).items():
        assert re.search(r"(@sha256:[0-9a-f]{64}|:(?!latest)[\w.-]+)$", container["image"]), name


def test_every_container_has_requests_and_limits(case: str) -> None:
    for name, (_, container) in containers(case).items():
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
        assert {"cpu", "memory"} <= set(container["resources"]["limits"]), name


def test_secrets_are_never_values_of_variables(case: str) -> None:
    for name, (_, container) in containers(case).items():
        for variable in container.get("env", []):
            is_secret = SECRETS.search(variable["name"]) and not variable["name"].endswith("_FILE")
            assert not is_secret or "value" not in variable, (name, variable["name"])


def test_only_secret_of_the_chart_is_the_key_between_pods(case: str) -> None:
    manifests = render_chart(case)
    (deployment,) = of_kind(manifests, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    volumes = {each["name"]: each.get("secret") for each in pod["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}

    secrets = {each["metadata"]["name"]: each["data"] for each in of_kind(manifests, "Secret")}
    assert all(len(b64decode(each["key"])) == 64 for each in secrets.values())
    if "GATEWAY_PEER_URL" not in env:
        assert secrets == {}
        return
    mounted = volumes["peers"]
    assert mounted is not None
    assert mounted["defaultMode"] == 0o440
    assert env["GATEWAY_PEER_KEY_FILE"] == f"{mounts['peers']}/{mounted['items'][0]['path']}"
    assert set(secrets) == {mounted["secretName"]} or (case, secrets) == ("scaled", {})


def test_port_between_pods_is_for_them_alone(case: str) -> None:
    manifests = render_chart(case)
    (deployment,) = of_kind(manifests, "Deployment")
    labels = deployment["spec"]["selector"]["matchLabels"]
    port = next(
        (each for each in deployment["spec"]["template"]["spec"]["containers"][0]["ports"] if each["name"] == "peers"),
        None,
    )
    rules = [
        (each["metadata"]["name"], rule)
        for each in of_kind(manifests, "NetworkPolicy")
        for rule in (*(each["spec"].get("ingress") or ()), *(each["spec"].get("egress") or ()))
        if any(open["port"] == 8079 for open in rule.get("ports", []))
    ]

    assert not any("peers" in str(each["spec"]["ports"]) for each in of_kind(manifests, "Service"))
    if port is None:
        assert rules == []
        return
    assert port["containerPort"] == 8079
    others = [rule.get("from") or rule.get("to") for _, rule in rules]
    assert others == [[{"podSelector": {"matchLabels": labels}}]] * 2


def test_only_declared_folders_can_be_written_to(case: str) -> None:
    for name, (pod, container) in containers(case).items():
        kinds = {volume["name"]: set(volume) - {"name"} for volume in pod["volumes"]}
        mounts = container["volumeMounts"]
        writable = {each["mountPath"] for each in mounts if not each.get("readOnly")}
        claims = {each["mountPath"] for each in mounts if each["name"].startswith("claim-")}
        assert writable - claims <= {"/data", "/tmp"}, name
        assert all(
            kinds[each["name"]] & {"emptyDir", "persistentVolumeClaim"} for each in mounts if not each.get("readOnly")
        )


def test_gateway_is_watched_and_has_time_to_end(case: str) -> None:
    (deployment,) = of_kind(render_chart(case), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    pause = int(container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", 0])[1])

    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert (ports["http"], ports["admin"]) == (int(env["GATEWAY_PORT"] or 0), int(env["GATEWAY_ADMIN_PORT"] or 0))
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in probes.values()} == {"admin"}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/livez",
        "readiness": "/readyz",
        "liveness": "/livez",
    }
    assert pod["terminationGracePeriodSeconds"] >= pause + int(env["GATEWAY_GRACE"] or 0) + 5


def test_services_and_policies_lead_to_the_pods_of_the_gateway_alone(case: str) -> None:
    manifests = render_chart(case)
    (deployment,) = of_kind(manifests, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    others = [each["metadata"]["labels"] for each in of_kind(manifests, "Pod")]
    others += [each["spec"]["template"]["metadata"]["labels"] for each in of_kind(manifests, "Job")]

    selectors = [each["spec"]["selector"] for each in of_kind(manifests, "Service")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(manifests, "PodDisruptionBudget")]
    selectors.append(deployment["spec"]["selector"]["matchLabels"])
    for selector in selectors:
        assert selector.items() <= labels
        assert not any(selector.items() <= other.items() for other in others)


def test_admin_plane_is_not_part_of_any_route(case: str) -> None:
    manifests = render_chart(case)
    routes = [*of_kind(manifests, "Ingress"), *of_kind(manifests, "HTTPRoute")]

    assert "-admin" not in str(routes)
    (data,) = [each for each in of_kind(manifests, "Service") if not each["metadata"]["name"].endswith("-admin")]
    assert [port["targetPort"] for port in data["spec"]["ports"]] == ["http"]


def test_every_pod_has_a_policy_of_its_own(case: str) -> None:
    manifests = render_chart(case)
    policies = [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(manifests, "NetworkPolicy")]
    labels = [each["metadata"]["labels"] for each in of_kind(manifests, "Pod")]
    labels += [
        each["spec"]["template"]["metadata"]["labels"] for each in manifests if each["kind"] in ("Deployment", "Job")
    ]

    if policies:
        assert [sum(policy.items() <= each.items() for policy in policies) for each in labels] == [1] * len(labels)


def test_policy_denies_what_it_does_not_name(case: str) -> None:
    for policy in of_kind(render_chart(case), "NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        for rule in policy["spec"].get("ingress") or []:
            assert rule["from"], "an empty list would let everybody in"
            assert rule["ports"]
        for rule in policy["spec"].get("egress") or []:
            assert rule["to"], "an empty list would let everything out"
            assert rule["ports"]
            for block in [each["ipBlock"] for each in rule["to"] if "ipBlock" in each]:
                assert block["cidr"] != "0.0.0.0/0" or "169.254.0.0/16" in block["except"]
