"""A change of each kind of document changes the right sections of the report, and no others."""

from pathlib import Path

import pytest

from gateway.config.kinds.validation import KINDS
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
    "Gateway": (
        {"configs/gateway.yaml": ("reload: {runPolicyTests: true}", "reload: {runPolicyTests: false}")},
        {"installation"},
    ),
    "IdentityProvider": (
        {"configs/gateway.yaml": ("security: role:security", "security: role:platform")},
        {"identities"},
    ),
    "Storage": ({"configs/gateway.yaml": ("audit: 400d", "audit: 300d")}, {"installation"}),
    "Telemetry": ({"configs/gateway.yaml": ("results: none}", "results: values}")}, {"installation"}),
    "TrustTier": ({"configs/trust.yaml": ("reviewedWithin: 730d", "reviewedWithin: 700d")}, {"trust"}),
    "TrustFlag": ({"configs/trust.yaml": ("description: Pays money.", "description: Pays out.")}, {"flags", "trust"}),
    "ArtifactClass": ({"configs/artifacts.yaml": ("maxSize: 64KiB", "maxSize: 32KiB")}, {"artifacts"}),
    "CollisionPolicy": ({"configs/collisions.yaml": ("onCollision: throw", "onCollision: keep")}, {"collisions"}),
    "GateRule-description": ({"configs/gates.yaml": ("One noisy agent must not", "One agent must not")}, {"rules"}),
    "GateRule-check": ({"configs/gates.yaml": ("limit: 5000", "limit: 4000")}, {"limits", "rules"}),
    "GateRule-approvers": (
        {"configs/gates.yaml": ("from: [role:security]", "from: [role:platform]")},
        {"identities", "rules"},
    ),
    "Pipeline": ({"configs/pipelines.yaml": ("openAfter: 5", "openAfter: 6")}, {"installation"}),
    "Pipeline-timeout": (
        {"configs/pipelines.yaml": ("with: {after: 30s}", "with: {after: 20s}")},
        {"installation", "limits"},
    ),
    "Tool-owner": ({"configs/tools/mail.yaml": ("owner: team-support", "owner: team-devex")}, {"catalogues"}),
    "Catalogue": (
        {"configs/catalogues/finance.yaml": ("title: Tools for finance", "title: For finance")},
        {"catalogues"},
    ),
    "Upstream": ({"configs/upstreams/wiki.yaml": ("failAfter: 3", "failAfter: 4")}, {"definitions"}),
    "PolicyTest": ({"policies/tests/finance.yaml": ("a large refund waits", "each large refund waits")}, {"rules"}),
    "row-of-roles": (
        {"policies/roles.csv": ("g, user:kim,              role:finance-clerk\n", "\n")},
        {"hazards", "identities", "rules"},
    ),
    "Overlay": (
        {"configs/overlays/desk.yaml": ("identity: [local, approver]", "identity: [approver, local]")},
        {"installation"},
    ),
    "row-of-policies": (
        {
            "policies/policy.csv": (
                "support,      tool:*,         invoke|read,       partner",
                "support,      tool:*,         invoke,            partner",
            )
        },
        {"hazards"},
    ),
    "Tool-flags": (
        {"configs/tools/mail.yaml": ("flags: [writes, egress]", "flags: [writes, destructive, egress]")},
        {"catalogues", "flags", "hazards", "trust"},
    ),
    "Upstream-limits": (
        {"configs/upstreams/wiki.yaml": ("limits: {timeout: 10s", "limits: {timeout: 9s")},
        {"definitions", "limits"},
    ),
    "Upstream-import": (
        {"configs/upstreams/freight.yaml": ("include: [getShipment, findShipments]", "include: [findShipments]")},
        {"catalogues", "definitions", "diagnostics", "flags", "rules", "trust"},
    ),
    "GrantPolicy": ({"configs/grants.yaml": ("maxActive: 3", "maxActive: 4")}, {"grants"}),
    "Attestation": (
        {"configs/attestations/team-finance.yaml": ('until: "2029-12-31"', 'until: "2028-12-31"')},
        {"accessUse"},
    ),
    "Catalogue-waiver": (
        {"configs/catalogues/support.yaml": ('until: "2029-12-31"', 'until: "2028-12-31"')},
        {"trust"},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_seen_in_its_sections_and_in_no_other(name: str, tmp_path: Path) -> None:
    edits, sections = CHANGES[name]
    folder = copy_example(tmp_path)
    edit_files(folder, edits)

    assert changed_sections(example_report(), report_of(folder)) == sections


def test_a_document_of_every_kind_is_changed() -> None:
    assert {name.partition("-")[0] for name in CHANGES} - {"row"} == set(KINDS)


def test_equal_projects_in_other_folders_have_equal_reports(tmp_path: Path) -> None:
    folder = copy_example(tmp_path / "elsewhere")

    assert report_to_json(report_of(folder)) == report_to_json(example_report())
    assert str(tmp_path) not in report_to_json(report_of(folder))


def test_values_from_the_environment_are_in_no_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOS_DIR", "/srv/hunter2")
    report = report_to_json(report_of(copy_example(tmp_path)))

    assert "hunter2" not in report
    assert "${REPOS_DIR:-/srv/repos}" in report
