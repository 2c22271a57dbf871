"""A change of each kind of document changes the right sections of the report, and no others."""

from pathlib import Path

import pytest

from gateway.review.report.report_data import report_to_json
from tests.review.report.report_projects import (
    Edits,
    changed_sections,
    copy_example,
    edit_files,
    example_report,
    report_of,
)

CHANGES: dict[str, tuple[Edits, set[str]]] = {
    "gateway": (
        {"configs/gateway.yaml": ("reload: {runPolicyTests: true}", "reload: {runPolicyTests: false}")},
        {"installation"},
    ),
    "identity": ({"configs/gateway.yaml": ("security: role:security", "security: role:platform")}, {"identities"}),
    "storage": ({"configs/gateway.yaml": ("audit: 400d", "audit: 300d")}, {"installation"}),
    "telemetry": ({"configs/gateway.yaml": ("results: none}", "results: values}")}, {"installation"}),
    "tier": ({"configs/trust.yaml": ("reviewedWithin: 730d", "reviewedWithin: 700d")}, {"trust"}),
    "flag": ({"configs/trust.yaml": ("description: Pays money.", "description: Pays out.")}, {"flags", "trust"}),
    "artifact": ({"configs/artifacts.yaml": ("maxSize: 64KiB", "maxSize: 32KiB")}, {"artifacts"}),
    "collisions": ({"configs/collisions.yaml": ("onCollision: throw", "onCollision: keep")}, {"collisions"}),
    "rule-description": ({"configs/gates.yaml": ("One noisy agent must not", "One agent must not")}, {"rules"}),
    "rule-check": ({"configs/gates.yaml": ("limit: 5000", "limit: 4000")}, {"limits", "rules"}),
    "rule-approvers": (
        {"configs/gates.yaml": ("from: [role:security]", "from: [role:platform]")},
        {"identities", "rules"},
    ),
    "pipeline": ({"configs/pipelines.yaml": ("openAfter: 5", "openAfter: 6")}, {"installation"}),
    "pipeline-timeout": (
        {"configs/pipelines.yaml": ("with: {after: 30s}", "with: {after: 20s}")},
        {"installation", "limits"},
    ),
    "tool-owner": ({"configs/tools/mail.yaml": ("owner: team-support", "owner: team-devex")}, {"catalogues"}),
    "catalogue": (
        {"configs/catalogues/finance.yaml": ("title: Tools for finance", "title: For finance")},
        {"catalogues"},
    ),
    "upstream": ({"configs/upstreams/wiki.yaml": ("failAfter: 3", "failAfter: 4")}, {"definitions"}),
    "test": ({"policies/tests/finance.yaml": ("a large refund waits", "each large refund waits")}, {"rules"}),
    "role": (
        {"policies/roles.csv": ("g, user:kim,              role:finance-clerk\n", "\n")},
        {"hazards", "identities", "rules"},
    ),
    "overlay": (
        {"configs/overlays/desk.yaml": ("identity: [local, approver]", "identity: [approver, local]")},
        {"installation"},
    ),
    "policy-row": (
        {
            "policies/policy.csv": (
                "support,      tool:*,         invoke|read,       partner",
                "support,      tool:*,         invoke,            partner",
            )
        },
        {"hazards"},
    ),
    "tool-flags": (
        {"configs/tools/mail.yaml": ("flags: [writes, egress]", "flags: [writes, destructive, egress]")},
        {"catalogues", "flags", "hazards", "trust"},
    ),
    "upstream-limits": (
        {"configs/upstreams/wiki.yaml": ("limits: {timeout: 10s", "limits: {timeout: 9s")},
        {"definitions", "limits"},
    ),
    "import": (
        {"configs/upstreams/freight.yaml": ("include: [getShipment, findShipments]", "include: [findShipments]")},
        {"catalogues", "definitions", "diagnostics", "flags", "rules", "trust"},
    ),
    "grant-policy": ({"configs/grants.yaml": ("maxActive: 3", "maxActive: 4")}, {"grants"}),
    "attestation": (
        {"configs/attestations/team-finance.yaml": ('until: "2029-12-31"', 'until: "2028-12-31"')},
        {"accessUse"},
    ),
    "waiver": ({"configs/catalogues/support.yaml": ('until: "2029-12-31"', 'until: "2028-12-31"')}, {"trust"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_seen_in_its_sections_and_in_no_other(name: str, tmp_path: Path) -> None:
    edits, sections = CHANGES[name]
    folder = copy_example(tmp_path)
    edit_files(folder, edits)

    assert changed_sections(example_report(), report_of(folder)) == sections


def test_equal_projects_in_other_folders_have_equal_reports(tmp_path: Path) -> None:
    folder = copy_example(tmp_path / "elsewhere")

    assert report_to_json(report_of(folder)) == report_to_json(example_report())
    assert str(tmp_path) not in report_to_json(report_of(folder))


def test_values_from_the_environment_are_in_no_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOS_DIR", "/srv/hunter2")
    report = report_to_json(report_of(copy_example(tmp_path)))

    assert "hunter2" not in report
    assert "${REPOS_DIR:-/srv/repos}" in report
