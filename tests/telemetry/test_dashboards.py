"""Dashboards and alerts query only existing metrics."""

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from gateway.config.kinds.validation import validate_document
from gateway.telemetry.export.prometheus_text import label_name, prometheus_name
from gateway.telemetry.names import METRICS
from tests.support.paths import ROOT
from tests.support.prometheus_programs import find_prometheus_program

FOLDER = ROOT / "dashboards"
SELECTOR = re.compile(r"\b([a-z][a-z0-9_]*_[a-z0-9_]+)\{([^}]*)\}")
SERIES: dict[str, set[str]] = {"up": set()}
for _metric in METRICS:
    _labels = {label_name(each) for each in _metric.attributes}
    if _metric.instrument == "histogram":
        SERIES |= {f"{prometheus_name(_metric)}_{suffix}": {*_labels, "le"} for suffix in ("bucket", "sum", "count")}
    else:
        SERIES[prometheus_name(_metric)] = _labels
OF_EVERY = {"job", "instance", "worker"}
WORDS = {
    *(
        "sum",
        "by",
        "rate",
        "increase",
        "max",
        "min",
        "time",
        "histogram_quantile",
        "topk",
        "clamp_min",
        "vector",
        "or",
        "and",
        "le",
    ),
    *("label_values", "job", "instance", "m", "h", "d", "up"),
}


def dashboard() -> Any:
    return json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


def expressions() -> list[Any]:
    found = [
        pytest.param(target["expr"], id=f"panel-{panel['title']}-{target['refId']}")
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    ]
    found += [
        pytest.param(each["definition"], id=f"variable-{each['name']}")
        for each in dashboard()["templating"]["list"]
        if each["type"] == "query"
    ]
    return found + [pytest.param(each["expr"], id=f"alert-{each['alert']}") for each in alerts()]


@pytest.mark.parametrize("expression", expressions())
def test_expression_is_about_series_and_labels_that_exist(expression: str) -> None:
    plain = re.sub(r'"[^"]*"|\$\w+', " ", expression)
    known = set(SERIES) | OF_EVERY | {label for labels in SERIES.values() for label in labels} | WORDS
    used = set(re.findall(r"[a-z_][a-z0-9_]*", re.sub(r"\[[^\]]*\]", " ", plain)))

    assert used <= known
    assert used & set(SERIES)
    for name, matchers in SELECTOR.findall(expression):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert labels <= SERIES[name] | OF_EVERY, name


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    shown = json.dumps(dashboard())

    missing = [metric.name for metric in METRICS if prometheus_name(metric) not in shown]
    assert missing == ["mcp.server.session.duration"]


def test_dashboard_can_be_imported_anywhere() -> None:
    found = dashboard()

    ids = [panel["id"] for panel in found["panels"]]
    places = [tuple(panel["gridPos"].values()) for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    assert len(set(places)) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in found["panels"])
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in found["panels"])
    assert {each["name"] for each in found["templating"]["list"]} == {"datasource", "job", "catalogue"}


def test_every_alert_has_a_summary_and_a_severity() -> None:
    for each in alerts():
        assert each["annotations"]["summary"], each["alert"]
        assert each["labels"]["severity"] in ("page", "ticket", "security"), each["alert"]


def test_prometheus_accepts_the_alerts() -> None:
    promtool = find_prometheus_program("promtool")

    found = subprocess.run(
        [promtool, "check", "rules", str(FOLDER / "alerts.yaml")], capture_output=True, text=True, timeout=60
    )

    assert found.returncode == 0, found.stderr


def test_every_alert_is_tested_with_series_that_raise_it_and_with_others() -> None:
    cases = yaml.safe_load((FOLDER / "alerts.test.yaml").read_text(encoding="utf-8"))["tests"]

    found = [(case["alert_rule_test"][0]["alertname"], "exp_alerts" in case["alert_rule_test"][0]) for case in cases]
    assert found == [(each["alert"], is_raised) for each in alerts() for is_raised in (True, False)]


def test_alerts_are_raised_when_they_should_be() -> None:
    promtool = find_prometheus_program("promtool")

    found = subprocess.run(
        [promtool, "test", "rules", "alerts.test.yaml"], cwd=FOLDER, capture_output=True, text=True, timeout=60
    )

    assert found.returncode == 0, found.stdout + found.stderr


def test_how_to_states_how_many_alerts_there_are() -> None:
    page = (FOLDER.parent / "docs" / "telemetry-backends.md").read_text(encoding="utf-8")

    assert re.findall(r"(\d+) alerts", page) == [str(len(alerts()))]


def test_credential_of_the_how_to_is_one_that_a_telemetry_document_takes() -> None:
    page = (FOLDER.parent / "docs" / "telemetry-backends.md").read_text(encoding="utf-8")
    (auth,) = re.findall(r"`auth: (\{.*?\}\})`", page)
    exporter = {"type": "otlp-http", "endpoint": "https://collector.example.com", "auth": yaml.safe_load(auth)}
    spec = {"service": "gateway", "traces": {"exporter": exporter}}
    metadata = {"name": "default", "owner": "team-observability"}

    _, problems = validate_document(
        {"apiVersion": "gateway/v1", "kind": "Telemetry", "metadata": metadata, "spec": spec}
    )

    assert problems == []


def test_links_and_pictures_of_the_how_to_exist() -> None:
    page = FOLDER.parent / "docs" / "telemetry-backends.md"
    text = page.read_text(encoding="utf-8")

    targets = [each.partition("#") for each in re.findall(r"\]\(([^)]+)\)", text)]
    files = [page.parent / path if path else page for path, _, _ in targets]
    assert [str(path) for path in files if not path.exists()] == []
    assert all(path.stat().st_size < 150_000 for path in files if path.suffix == ".png")
    for path, (_, _, anchor) in zip(files, targets, strict=True):
        headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        slugs = {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert not anchor or anchor in slugs, f"{path.name}#{anchor}"
