"""Changes to the attestations that a Gateway requires: less of them is named."""

from pathlib import Path

import pytest

from tests.review.project_edits import copy_project, edit, plan_edit

STORAGE = "  storage: main\n"
REVIEW = "accessReview: {every: 90d, owners: [team-a, team-b]}"


def findings(tmp_path: Path, before: str, after: str) -> list[tuple[str, str, str]]:
    folders = copy_project(tmp_path / "before"), copy_project(tmp_path / "after")
    for folder, line in zip(folders, (before, after), strict=True):
        edit(folder, "configs/gateway.yaml", STORAGE, f"{STORAGE}  {line}\n" if line else STORAGE)
    found = plan_edit(*folders).findings
    return [(each.code, each.path, each.weight) for each in found if each.code != "changed"]


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        pytest.param(REVIEW, "", "accessReview", id="removed"),
        pytest.param("90d", "91d", "accessReview.every", id="longer"),
        pytest.param(", team-b", "", "accessReview.owners", id="fewer-owners"),
        pytest.param("{every: 90d, owners: [team-a, team-b]}", "{every: 90d}", None, id="all-owners"),
        pytest.param("90d", "30d", None, id="shorter"),
        pytest.param("team-b]", "team-b, team-c]", None, id="more-owners"),
    ],
)
def test_review_that_asks_less_is_named(tmp_path: Path, old: str, new: str, path: str | None) -> None:
    expected = [] if path is None else [("access-review-relaxed", path, "medium")]

    assert findings(tmp_path, REVIEW, REVIEW.replace(old, new)) == expected


def test_owners_instead_of_all_are_fewer(tmp_path: Path) -> None:
    found = findings(tmp_path, "accessReview: {every: 90d}", "accessReview: {every: 90d, owners: [team-a]}")

    assert found == [("access-review-relaxed", "accessReview.owners", "medium")]


def test_new_review_is_no_weakness(tmp_path: Path) -> None:
    assert findings(tmp_path, "", REVIEW) == []
