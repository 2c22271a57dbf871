"""Changes to the proof of the decision log and to approval webhooks: each has a name and a weight."""

from pathlib import Path

import pytest

from tests.review.project_edits import copy_project, edit, plan_edit

ANCHORS = "anchors: {path: /mnt/anchors.jsonl, signingKey: {fromFile: anchors.key}}"
AUDIT = f"  audit: {{key: {{fromEnv: AUDIT_KEY}}, {ANCHORS}}}\n"
CHAT = '{name: chat, url: "https://chat.example.com/hook", secret: {fromEnv: CHAT_SECRET}, events: [requested]}'
PAGER = '{name: pager, url: "https://pager.example.com/", secret: {fromEnv: PAGER_SECRET}}'
WEBHOOKS = f"  webhooks: [{CHAT}]\n"


def findings(tmp_path: Path, before: str, after: str) -> list[tuple[str, str, str, str]]:
    folders = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder, lines in zip(folders, (before, after), strict=True):
        edit(folder, "configs/gateway.yaml", "  storage: main\n", f"  storage: main\n{lines}")
    plan = plan_edit(*folders)
    assert {each.about for each in plan.findings if each.code != "changed"} == {"Gateway small"}
    return [(each.code, each.path, each.note, each.weight) for each in plan.findings if each.code != "changed"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(AUDIT, "", ("audit-removed", "audit", "", "high"), id="audit"),
        pytest.param("key: {fromEnv: AUDIT_KEY}, ", "", ("audit-key-removed", "audit.key", "", "medium"), id="key"),
        pytest.param("AUDIT_KEY", "OTHER_KEY", ("audit-key-changed", "audit.key", "", "low"), id="other-key"),
        pytest.param(f", {ANCHORS}", "", ("anchors-removed", "audit.anchors", "", "high"), id="anchors"),
        pytest.param("/mnt", "/srv", ("anchors-changed", "audit.anchors.path", "", "medium"), id="path"),
        pytest.param(
            "anchors.key", "other.key", ("anchors-changed", "audit.anchors.signingKey", "", "medium"), id="signing-key"
        ),
        pytest.param(
            "path:", "every: 5m, path:", ("anchors-rarer", "audit.anchors.every", "", "low"), id="longer-apart"
        ),
        pytest.param(
            "path:", "entries: 5000, path:", ("anchors-rarer", "audit.anchors.entries", "", "low"), id="more-entries"
        ),
    ],
)
def test_log_that_proves_less_is_named(tmp_path: Path, old: str, new: str, expected: tuple[str, str, str, str]) -> None:
    assert findings(tmp_path, AUDIT, AUDIT.replace(old, new)) == [expected]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("", AUDIT, id="more-proof"),
        pytest.param(AUDIT, AUDIT.replace("path:", "every: 10s, entries: 10, path:"), id="more-often"),
        pytest.param(AUDIT, AUDIT.replace("path:", "every: 1m, entries: 1000, path:"), id="defaults-written-out"),
    ],
)
def test_log_that_proves_as_much_or_more_is_no_risk(tmp_path: Path, before: str, after: str) -> None:
    folders = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder, lines in zip(folders, (before, after), strict=True):
        edit(folder, "configs/gateway.yaml", "  storage: main\n", f"  storage: main\n{lines}")

    assert {each.code for each in plan_edit(*folders).findings} <= {"changed"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(WEBHOOKS, "", ("webhook-removed", "webhooks", "chat", "medium"), id="removed"),
        pytest.param(CHAT, f"{CHAT}, {PAGER}", ("webhook-added", "webhooks", "pager", "medium"), id="added"),
        pytest.param(
            "chat.example.com", "chat.example.org", ("webhook-changed", "webhooks", "chat", "medium"), id="elsewhere"
        ),
        pytest.param(
            "[requested]", "[requested, decided]", ("webhook-changed", "webhooks", "chat", "medium"), id="events"
        ),
        pytest.param(
            "CHAT_SECRET", "OTHER_SECRET", ("webhook-changed", "webhooks", "chat", "medium"), id="other-secret"
        ),
        pytest.param(
            "events:",
            "networks: [10.1.0.0/16], events:",
            ("network-widened", "webhooks", "chat reaches 10.1.0.0/16", "high"),
            id="network",
        ),
    ],
)
def test_changes_of_webhooks_are_named(tmp_path: Path, old: str, new: str, expected: tuple[str, str, str, str]) -> None:
    assert findings(tmp_path, WEBHOOKS, WEBHOOKS.replace(old, new)) == [expected]


def test_renamed_webhook_is_one_less_and_one_more(tmp_path: Path) -> None:
    found = findings(tmp_path, WEBHOOKS, WEBHOOKS.replace("name: chat", "name: desk"))

    assert [(code, note) for code, _, note, _ in found] == [("webhook-removed", "chat"), ("webhook-added", "desk")]
