"""Artifact classes of results: built-in ones, and declared ones with their options and masks."""

from typing import Any

import pytest

from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.spool_stores import InMemoryReader
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.artifact_classes import ArtifactTypes
from gateway.engine.stages.result_stages import redact_artifact
from gateway.registries.snapshot import ArtifactClass
from tests.engine.service_gateway import BUILT_IN, HERE

pytestmark = pytest.mark.anyio

MASKED = ArtifactClass("masked", SpooledJsonArtifact, HERE, redact=("$.password",))
PLAIN = ArtifactClass("plain", SpooledJsonArtifact, HERE, queries=frozenset({"json_get"}))
SECRET = b'{"user":"kim","password":"hunter2"}'


@pytest.fixture
def types() -> ArtifactTypes:
    return ArtifactTypes({"masked": MASKED, "plain": PLAIN}, built_in=BUILT_IN.__getitem__, mask=redact_artifact)


def test_declared_classes_are_subclasses_and_built_in_ones_are_themselves(types: ArtifactTypes) -> None:
    assert types.get("text") is SpooledArtifact
    assert types.get("json") is types.get("json") is SpooledJsonArtifact
    assert issubclass(types.get("masked"), SpooledJsonArtifact)
    assert types.get("masked") is not SpooledJsonArtifact
    assert (types.get_declared("masked"), types.get_declared("text")) == (MASKED, None)
    with pytest.raises(KeyError):
        types.get("nothing")


def test_only_classes_with_paths_to_mask_are_masked(types: ArtifactTypes) -> None:
    assert [types.is_masked(name) for name in ("masked", "plain", "text", "nothing")] == [True, False, False, False]


@pytest.mark.parametrize(("name", "is_shown"), [("masked", False), ("plain", True), ("json", True), ("text", True)])
async def test_what_a_document_masks_is_masked_in_views_and_kept_in_the_bytes(
    name: str, is_shown: bool, types: ArtifactTypes
) -> None:
    reader = InMemoryReader(SECRET)
    artifact: Any = await types.wrap(name, reader)

    assert ("hunter2" in await artifact.as_string()) is is_shown
    assert artifact.stored_reader is reader
