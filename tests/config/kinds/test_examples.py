"""Every example validates unchanged, and every field is documented and safe for other YAML readers."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.config.field_introspection import (
    FieldType,
    ListField,
    MapField,
    ObjectField,
    ScalarField,
    UnionField,
    list_fields,
)
from gateway.config.kinds.catalogues import PublishSpec
from gateway.config.kinds.common_specs import SpecModel
from gateway.config.kinds.validation import KINDS, validate_document
from tests.config.kinds.example_documents import DOCUMENTS, label, read, resolved
from tests.support.paths import ROOT

DESIGN = ROOT.parent / "shared" / "design" / "configuration.md"
BOOLEAN_WORDS = {"on", "off", "yes", "no", "y", "n"}


def models_under(shape: FieldType, seen: set[type[SpecModel]]) -> Iterator[type[SpecModel]]:
    match shape:
        case ObjectField(model=model) if model not in seen:
            seen.add(model)
            yield model
            for part in list_fields(model).values():
                yield from models_under(part.shape, seen)
        case ListField(item=item):
            yield from models_under(item, seen)
        case MapField(value=value):
            yield from models_under(value, seen)
        case UnionField(shapes=shapes):
            for _, each in shapes:
                yield from models_under(each, seen)
        case _:
            pass


MODELS = list({model for kind in KINDS.values() for model in models_under(ObjectField(kind.model), set())})
MODELS.sort(key=lambda model: model.__name__)


def words_of(shape: FieldType) -> Iterator[str]:
    match shape:
        case ScalarField(choices=choices):
            yield from choices
        case ListField(item=item):
            yield from words_of(item)
        case MapField(key=key, value=value):
            yield from words_of(key)
            yield from words_of(value)
        case UnionField(shapes=shapes):
            yield from (name for name, _ in shapes)
            for _, each in shapes:
                yield from words_of(each)
        case _:
            pass


@pytest.mark.parametrize("document", DOCUMENTS, ids=label)
def test_example_validates_unchanged(document: dict[str, Any]) -> None:
    model, problems = validate_document(document)

    assert problems == []
    assert type(model) is KINDS[document["kind"]].model


def test_examples_of_the_design_validate_unchanged() -> None:
    if not DESIGN.exists():
        pytest.skip("the design documents are not beside this checkout")
    blocks = re.findall(r"```yaml\n(.*?)```", DESIGN.read_text(encoding="utf-8"), re.DOTALL)
    documents = [document for block in blocks for document in read(resolved(block))]

    problems = {label(document): validate_document(document)[1] for document in documents}

    assert len(documents) > 30
    assert {name: found for name, found in problems.items() if found} == {}


def test_every_kind_has_an_example() -> None:
    assert {document["kind"] for document in DOCUMENTS} == set(KINDS)


def test_every_variant_has_an_example() -> None:
    tags = {
        (part.shape.tag, name)
        for model in MODELS
        for part in list_fields(model).values()
        if isinstance(part.shape, UnionField) and part.shape.tag
        for name, _ in part.shape.shapes
    }

    assert tags - set(pairs_in(DOCUMENTS)) == set()


def pairs_in(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str):
                yield key, inner
            yield from pairs_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pairs_in(inner)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_documented(model: type[SpecModel]) -> None:
    undocumented = [name for name, part in list_fields(model).items() if not part.description.endswith(".")]

    assert undocumented == []
    assert (model.__doc__ or "").strip().endswith(".")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_no_word_is_a_boolean_elsewhere(model: type[SpecModel]) -> None:
    words = set(list_fields(model)) | {word for part in list_fields(model).values() for word in words_of(part.shape)}

    allowed: set[str] = (
        {"off"} if model is PublishSpec else set()
    )  # we read it as a string, and `gateway render` quotes it
    assert {word for word in words if word.lower() in BOOLEAN_WORDS} == allowed


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_shape_is_closed_strict_and_frozen(model: type[SpecModel]) -> None:
    config = model.model_config

    assert (config["extra"], config["strict"], config["frozen"]) == ("forbid", True, True)
    assert "populate_by_name" not in config


def test_python_names_are_not_accepted() -> None:
    document = {
        "api_version": "gateway/v1",
        "kind": "TrustTier",
        "metadata": {"name": "x"},
        "spec": {"rank": 1, "description": "x", "origin": "first-party", "may_be_trusted": True},
    }

    _, problems = validate_document(document)

    assert {problem.path for problem in problems} == {(), ("api_version",), ("spec", "may_be_trusted")}
