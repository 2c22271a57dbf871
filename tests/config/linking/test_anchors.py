"""Anchors in the folder of their own log are a warning; anchors elsewhere are not."""

import pytest

from tests.config.linking.projects import INSTALLATION, document, gateway, linked, list_codes, problem

KEY = {"fromFile": "anchors.key"}


def installation(anchors: str, database: str) -> list[str]:
    storage = document("Storage", "main", {"type": "sqlite", "path": database})
    return [gateway(audit={"anchors": {"path": anchors, "signingKey": KEY}}), INSTALLATION[1], storage]


@pytest.mark.parametrize(
    ("anchors", "database"),
    [
        ("data/anchors.jsonl", "data/gateway.db"),
        ("./data/sub/anchors.jsonl", "data/gateway.db"),
        ("anchors.jsonl", "gateway.db"),
        ("/var/lib/gateway/a/../anchors.jsonl", "/var/lib//gateway/gateway.db"),
    ],
)
def test_anchors_in_the_folder_of_the_log_are_reported(anchors: str, database: str) -> None:
    found = linked(installation=installation(anchors, database))

    assert list_codes(found) == ["anchors-beside-log"]
    assert problem(found, "anchors-beside-log").severity == "warning"
    assert [label for label, _ in problem(found, "anchors-beside-log").related] == ["the log"]


@pytest.mark.parametrize(
    ("anchors", "database"),
    [
        ("/mnt/anchors/a.jsonl", "/var/lib/gateway/gateway.db"),
        ("anchors/a.jsonl", "data/gateway.db"),
        ("data-anchors/a.jsonl", "data/gateway.db"),
        ("/mnt/a.jsonl", "data/gateway.db"),
    ],
)
def test_anchors_elsewhere_are_not(anchors: str, database: str) -> None:
    assert list_codes(linked(installation=installation(anchors, database))) == []


def test_without_anchors_or_a_file_of_ours_there_is_no_problem() -> None:
    postgres = {"type": "postgres", "connection": KEY, "blobs": {"type": "files", "path": "data"}}
    shared = [installation("data/a.jsonl", "data/x.db")[0], INSTALLATION[1], document("Storage", "main", postgres)]

    assert list_codes(linked(installation=shared)) == []
    assert list_codes(linked(installation=[gateway(audit={"key": KEY}), *INSTALLATION[1:]])) == []
    assert list_codes(linked()) == []
