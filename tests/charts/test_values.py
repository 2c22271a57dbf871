"""Invalid values get a message that names them, and every value is documented."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.helm import CASES, CHART, VALUES, helm
from tests.support.paths import ROOT

IMAGE = VALUES / "image.yaml"
MINIMAL = CASES["minimal"][0]

UNKNOWN = {
    "top": ("replicaCount: 3", "'replicaCount'"),
    "misspelled": ("replica: 3", "'replica'"),
    "image": ("image: {name: x}", "'/image'", "'name'"),
    "storage": ("storage: {sqlite: {sise: 1Gi}}", "'/storage/sqlite'", "'sise'"),
    "key between pods": ("storage: {postgres: {peerSecret: {value: a}}}", "'/storage/postgres/peerSecret'", "'value'"),
    "probe": ("probes: {liveness: {path: /x}}", "'/probes/liveness'", "'path'"),
    "secret variable": ("secretEnv: [{name: A, secret: b, key: c, value: hunter2}]", "'/secretEnv/0'", "'value'"),
    "secret file": ("secretFiles: [{secret: a, path: /b, mode: 420}]", "'/secretFiles/0'", "'mode'"),
    "item": ("project: {configMaps: {configs: {items: [{key: a, path: b, mode: 1}]}}}", "items/0'", "'mode'"),
    "peer": ("networkPolicy: {ingress: {data: [{pods: {}}]}}", "'/networkPolicy/ingress/data/0'", "'pods'"),
    "selector": ("networkPolicy: {ingress: {data: [{podSelector: {labels: {}}}]}}", "podSelector'", "'labels'"),
    "egress": ("networkPolicy: {egress: {cidrs: [{cidr: 10.0.0.0/8, port: 443}]}}", "cidrs/0'", "'port'"),
    "parent": ("httpRoute: {parentRefs: [{name: a, host: b}]}", "'/httpRoute/parentRefs/0'", "'host'"),
    "toleration": ("tolerations: [{keys: a}]", "'/tolerations/0'", "'keys'"),
    "affinity": ("affinity: {pods: {}}", "'/affinity'", "'pods'"),
    "rule": ("prometheusRule: {rules: [{alert: a, expression: b}]}", "rules/0'", "'expression'"),
    "resources": ("resources: {limits: {cpus: 1}}", "'/resources/limits'", "'cpus'"),
    "test": ("test: {token: hunter2}", "'/test'", "'token'"),
}

WRONG = {
    "latest": ("image: {tag: latest}", "'/image/tag'"),
    "digest": ("image: {digest: sha256:abc}", "'/image/digest'"),
    "no pods": ("replicas: 0", "'/replicas'"),
    "text for a number": ("replicas: three", "'/replicas'"),
    "port": ("service: {port: 70000}", "'/service/port'"),
    "service": ("service: {type: ExternalName}", "'/service/type'"),
    "storage": ("storage: {type: mysql}", "'/storage/type'"),
    "size": ("storage: {sqlite: {size: lots}}", "'/storage/sqlite/size'"),
    "root": ("security: {runAsUser: 0}", "'/security/runAsUser'"),
    "url": ("publicUrl: gateway.example.com", "'/publicUrl'"),
    "origin": ("allowedOrigins: ['*']", "'/allowedOrigins/0'"),
    "path out": ("project: {source: values, configs: {../x.yaml: 'a'}}", "../x.yaml"),
    "absolute path": ("project: {source: values, configs: {/x.yaml: 'a'}}", "/x.yaml"),
    "document as a tree": ("project: {source: values, configs: {x.yaml: {kind: Tool}}}", "x.yaml"),
    "variable": ("env: {not-a-name: x}", "not-a-name"),
    "no limits": ("resources: {limits: null}", "'/resources'"),
    "no key": ("secretEnv: [{name: A, secret: b}]", "'/secretEnv/0'", "'key'"),
    "egress without ports": ("networkPolicy: {egress: {cidrs: [{cidr: 10.0.0.0/8}]}}", "cidrs/0'", "'ports'"),
    "cidr": ("networkPolicy: {egress: {cidrs: [{cidr: example.com, ports: [1]}]}}", "cidrs/0/cidr'"),
    "peer of nobody": ("networkPolicy: {ingress: {data: [{}]}}", "'/networkPolicy/ingress/data/0'"),
    "arguments": ("test: {arguments: sku}", "'/test/arguments'"),
    "interval": ("serviceMonitor: {interval: often}", "'/serviceMonitor/interval'"),
    "environment": ("environment: Prod Environment", "'/environment'"),
}

TOGETHER = {
    "pods on sqlite": ("replicas: 3", "replicas: 3 pods cannot share one SQLite file", "storage.type: postgres"),
    "scaling on sqlite": ("autoscaling: {enabled: true}", "autoscaling.enabled: more than one pod"),
    "postgres of nobody": ("storage: {type: postgres}", "storage.postgres.secret.name", "no database"),
    "fewer than at least": (
        "storage: {type: postgres, postgres: {secret: {name: a}}}\nautoscaling: {enabled: true, minReplicas: 9}",
        "autoscaling.minReplicas",
    ),
    "nothing to serve": ("project: {source: values}", "project: there is nothing to serve"),
    "policies alone": ("project: {source: values, policies: {policy.csv: 'p'}}", "project: there is nothing to serve"),
    "files unused": ("project: {source: image, configs: {a.yaml: 'a'}}", "project.configs", "project.source: image"),
    "maps unused": ("project: {source: image, configMaps: {configs: {name: a}}}", "project.configMaps"),
    "one map": ("project: {source: configMaps, configMaps: {configs: {name: a}}}", "project.configMaps.policies.name"),
    "ingress to nowhere": ("ingress: {enabled: true}", "ingress.host"),
    "route of nobody": ("httpRoute: {enabled: true}", "httpRoute.parentRefs"),
    "names as egress": (
        "networkPolicy: {egress: {hosts: [{name: a.example.com, ports: [443]}]}}",
        "networkPolicy.egress.hosts",
        "flavour: cilium",
    ),
    "secret as text": ("env: {HELPDESK_TOKEN: hunter2}", "env.HELPDESK_TOKEN", "secretEnv"),
    "key as text": ("env: {GATEWAY_AUDIT_KEY: hunter2}", "env.GATEWAY_AUDIT_KEY", "secretEnv"),
    "variable of the chart": ("env: {GATEWAY_PORT: 9}", "env.GATEWAY_PORT", "service.port"),
    "variable twice": ("secretEnv: [{name: A, secret: b, key: c}, {name: A, secret: d, key: e}]", "secretEnv: A"),
    "call of nobody": ("test: {tool: a, catalogue: b}", "test.tokenSecret.name"),
    "metrics for nobody": ("serviceMonitor: {enabled: true}", "serviceMonitor.tokenSecret", "serviceMonitor.open"),
    "no service to scrape": (
        "serviceMonitor: {enabled: true}\nadminService: {enabled: false}",
        "serviceMonitor.enabled",
    ),
}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(values, expected, id=f"{group}: {name}")
        for group, table in (("unknown", UNKNOWN), ("wrong", WRONG), ("together", TOGETHER))
        for name, (values, *expected) in table.items()
    ],
)
def test_wrong_value_gets_a_message_that_names_it(values: str, expected: list[str], tmp_path: Path) -> None:
    given = tmp_path / "values.yaml"
    given.write_text(values, encoding="utf-8")

    done = helm("template", "gateway", CHART, "--values", IMAGE, "--values", given)

    assert done.returncode != 0
    assert [each for each in expected if each not in done.stderr] == [], done.stderr
    assert "hunter2" not in done.stderr


def test_every_value_is_in_the_schema_and_every_depth_is_closed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    assert sorted(_find_differences(schema, values, schema)) == []
    assert sorted(_find_open_objects(schema, "")) == [
        # maps with the user's own names: labels, annotations and variables
        "/$defs/words",
        "/properties/affinity/properties/nodeAffinity",
        "/properties/affinity/properties/podAffinity",
        "/properties/affinity/properties/podAntiAffinity",
        "/properties/env",
        "/properties/global",
    ]


def test_what_is_generated_from_the_comments_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "charts" / "values_docs.py"), "--check"]

    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


def test_chart_is_of_this_version() -> None:
    from gateway import __version__

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))

    assert chart["appVersion"] == __version__


def test_chart_has_no_other_charts_in_it() -> None:
    assert "dependencies" not in yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert not (CHART / "charts").exists()


def _find_differences(node: Any, values: Any, schema: Any, path: str = "") -> list[str]:
    """Return the paths that only the values or only the schema have."""
    if name := node.get("$ref", "").removeprefix("#/$defs/"):
        node = schema["$defs"][name]
    properties = node.get("properties")
    if not isinstance(values, dict) or not properties or not values:
        return []
    both = set(values) & set(properties)
    odd = [f"{path}/{key}" for key in set(values) ^ set(properties) if key != "global"]
    return odd + [
        found for key in both for found in _find_differences(properties[key], values[key], schema, f"{path}/{key}")
    ]


def _find_open_objects(node: Any, path: str) -> list[str]:
    """Return the places that accept unknown names."""
    if isinstance(node, list):
        return [found for index, each in enumerate(node) for found in _find_open_objects(each, f"{path}/{index}")]
    if not isinstance(node, dict):
        return []
    found = [path] if node.get("type") == "object" and node.get("additionalProperties") is not False else []
    return found + [each for key, value in node.items() for each in _find_open_objects(value, f"{path}/{key}")]
