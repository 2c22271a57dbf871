"""Artifact classes: the class behind each base, its actual options and queries, and custom classes."""

from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.formats.source_code.source_artifact import SpooledEcmascriptArtifact, SpooledPythonArtifact
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.config.kinds.common_specs import BUILT_IN_ARTIFACT_CLASSES, UNMASKED_ARTIFACTS, BaseArtifact
from tests.config.linking.projects import catalogue, document, linked, list_codes, problem, snapshot_of, tool
from tests.support.gateways.published_names import ANSWERS

OWN = """
from gateway.artifacts.spooled_artifact import SpooledArtifact

class Plain(SpooledArtifact): ...

class Picky(SpooledArtifact):
    def __init__(self, reader, *, depth=1, width=1):
        super().__init__(reader)
        if depth < 1:
            raise RuntimeError("depth is too small\\nand more")
        if depth > width:
            raise ValueError("deeper than wide")

class Paired(SpooledArtifact):
    def __init__(self, reader, left=False, right=False):
        super().__init__(reader)
        if left and right:
            raise ValueError("left or right, not both")

class Greedy(SpooledArtifact):
    def __init__(self, reader, **options):
        super().__init__(reader)

class Bare:
    head = tail = cat = grep = byte_length = line_count = estimate_tokens = lambda self: None

def function(): ...
"""


def artifact(**spec: Any) -> str:
    given = spec if "class" in spec else {"base": "json", **spec}
    return document("ArtifactClass", "order", {"description": "An order.", **given})


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_artifacts.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("spec", "constructor", "options"),
    [
        ({"base": "text"}, SpooledArtifact, {}),
        ({"base": "json"}, SpooledJsonArtifact, {}),
        ({"base": "json", "options": {"format": "jsonl"}}, SpooledJsonArtifact, {"format": "jsonl"}),
        ({"base": "source"}, SpooledEcmascriptArtifact, {}),
        ({"base": "source", "options": {"language": "python"}}, SpooledPythonArtifact, {}),
    ],
    ids=["text", "json", "json lines", "script", "python"],
)
def test_base_stands_for_a_class(spec: dict[str, Any], constructor: type, options: dict[str, Any]) -> None:
    order = snapshot_of(linked(artifact(**spec), tool(), catalogue())).artifacts["order"]

    assert order.constructor is constructor
    assert order.options == options


@pytest.mark.parametrize("base", ["text", "json", "markdown", "yaml", "xml", "toon", "source"])
def test_every_base_links(base: str) -> None:
    assert list_codes(linked(artifact(base=base), tool(), catalogue())) == []


def test_class_carries_what_its_document_declares() -> None:
    spec = {
        "queries": ["json_get"],
        "sensitivity": "confidential",
        "maxSize": "1KiB",
        "inlineBelow": "100B",
        "retain": "2h",
        "redact": ["$.email"],
        "flow": {"maxTier": "middle", "blockedBy": ["egress"]},
    }

    order = snapshot_of(linked(artifact(**spec), tool(), catalogue())).artifacts["order"]

    assert order.queries == frozenset({"json_get"})
    assert (order.sensitivity, order.max_size, order.inline_below) == ("confidential", 1024, 100)
    assert (order.retain, order.redact) == (timedelta(hours=2), ("$.email",))
    assert (order.max_tier, order.blocked_by) == ("middle", frozenset({"egress"}))


def test_class_without_queries_offers_all() -> None:
    assert snapshot_of(linked(artifact(), tool(), catalogue())).artifacts["order"].queries is None


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("spec", "message", "token"),
    [
        ({"options": {"fromat": "json"}}, "base json has no option 'fromat'", '"fromat"'),
        (
            {"options": {"format": "csv"}},
            "base json refuses its options: 'csv' is not one of json, json5, jsonl, ndjson",
            '"csv"',
        ),
        ({"base": "text", "options": {"format": "json"}}, "base text has no option 'format'", '"format"'),
        (
            {"class": "acme_artifacts:Picky", "options": {"depth": 0}},
            "acme_artifacts:Picky refuses its options: depth is too small",
            "0",
        ),
        (
            {"class": "acme_artifacts:Picky", "options": {"depth": 3, "width": 2}},
            "acme_artifacts:Picky refuses its options: deeper than wide",
            "3",
        ),
    ],
)
def test_option_that_the_class_does_not_take_is_reported(spec: dict[str, Any], message: str, token: str) -> None:
    found = linked(artifact(**spec), tool(), catalogue(), packages=["acme_artifacts"])

    assert list_codes(found) == ["bad-options"]
    assert problem(found, "bad-options").message == message
    assert problem(found, "bad-options").position.width == len(token)


@pytest.mark.usefixtures("own")
def test_options_that_only_fail_together_are_reported_at_the_options() -> None:
    spec = {"class": "acme_artifacts:Paired", "options": {"left": True, "right": True}}

    found = linked(artifact(**spec), tool(), catalogue(), packages=["acme_artifacts"])

    assert list_codes(found) == ["bad-options"]
    assert problem(found, "bad-options").position.width == len('"options"')


@pytest.mark.usefixtures("own")
def test_options_that_need_each_other_are_taken_together() -> None:
    spec = {"class": "acme_artifacts:Picky", "options": {"depth": 3, "width": 5}}

    assert list_codes(linked(artifact(**spec), tool(), catalogue(), packages=["acme_artifacts"])) == []


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("spec", "codes"),
    [
        ({"class": "acme_artifacts:Plain"}, []),
        ({"class": "acme_artifacts:Greedy", "options": {"anything": 1}}, []),
        ({"class": "acme_artifacts:Bare"}, []),
        ({"class": "acme_artifacts:Bare", "queries": ["head"]}, ["unknown-query"]),
        ({"class": "acme_artifacts:Plain", "queries": ["head", "tial"]}, ["unknown-query"]),
        ({"class": "acme_artifacts:function"}, ["not-an-artifact-class"]),
        ({"class": "acme_artifacts:Missing"}, ["entrypoint-missing"]),
        ({"class": "acme_artifacts:SpooledArtifact"}, ["package-not-allowed"]),
        ({"class": "other:Plain"}, ["package-not-allowed"]),
    ],
    ids=["own", "any option", "seven methods", "no queries", "typo", "function", "missing", "borrowed", "elsewhere"],
)
def test_class_of_our_own(spec: dict[str, Any], codes: list[str]) -> None:
    assert list_codes(linked(artifact(**spec), tool(), catalogue(), packages=["acme_artifacts"])) == codes


def test_media_class_is_no_artifact_class() -> None:
    found = linked(artifact(**{"class": "gateway.model.media:Media"}), tool(), catalogue(), packages=["gateway.model"])

    assert list_codes(found) == ["not-an-artifact-class"]


def test_option_from_the_environment_is_not_repeated() -> None:
    found = linked(artifact(options={"format": "${FORMAT}"}), tool(), catalogue(), environ={"FORMAT": "hunter2"})

    assert list_codes(found) == ["bad-options"]
    assert "hunter2" not in problem(found, "bad-options").message


def test_every_base_has_a_class_and_its_reads_are_tested_for_a_decision() -> None:
    assert BUILT_IN_ARTIFACT_CLASSES.keys() == set(get_args(BaseArtifact))
    assert set(get_args(BaseArtifact)) <= ANSWERS.keys()
    assert set(get_args(BaseArtifact)) >= UNMASKED_ARTIFACTS
