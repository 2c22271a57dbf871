"""Classes of results: built-in ones, and declared ones with their options bound and their masks on."""

from typing import Any

import pytest
from serving_gateway import BUILT_IN, HERE

from gateway.core.artifacts import SpooledArtifact
from gateway.core.spool import InMemoryReader
from gateway.formats.jsondoc import SpooledJsonArtifact
from gateway.middleware.redaction import redacted
from gateway.serving.artifact_types import ArtifactTypes
from gateway.snapshot import ArtifactClass

pytestmark = pytest.mark.anyio

MASKED = ArtifactClass("masked", SpooledJsonArtifact, HERE, redact=("$.password",))
PLAIN = ArtifactClass("plain", SpooledJsonArtifact, HERE, queries=frozenset({"json_get"}))
SECRET = b'{"user":"kim","password":"hunter2"}'


@pytest.fixture
def types() -> ArtifactTypes:
    return ArtifactTypes({"masked": MASKED, "plain": PLAIN}, built_in=BUILT_IN.__getitem__, mask=redacted)


def test_declared_classes_are_subclasses_and_built_in_ones_are_themselves(types: ArtifactTypes) -> None:
    assert types.named("text") is SpooledArtifact
    assert types.named("json") is types.named("json") is SpooledJsonArtifact
    assert issubclass(types.named("masked"), SpooledJsonArtifact)
    assert types.named("masked") is not SpooledJsonArtifact
    assert (types.declared("masked"), types.declared("text")) == (MASKED, None)
    with pytest.raises(KeyError):
        types.named("nothing")


def test_only_classes_with_paths_to_mask_are_masked(types: ArtifactTypes) -> None:
    assert [types.is_masked(name) for name in ("masked", "plain", "text", "nothing")] == [True, False, False, False]


@pytest.mark.parametrize(("name", "is_shown"), [("masked", False), ("plain", True), ("json", True), ("text", True)])
async def test_what_a_document_masks_is_masked_in_views_and_kept_in_the_bytes(
    name: str, is_shown: bool, types: ArtifactTypes
) -> None:
    reader = InMemoryReader(SECRET)
    artifact: Any = await types.over(name, reader)

    assert ("hunter2" in await artifact.as_string()) is is_shown
    assert artifact.stored_reader is reader
