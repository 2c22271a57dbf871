"""Secrets are objects; neither they nor values in their place are ever printed."""

import json
from typing import Any

import pytest

from gateway.config.kinds.validation import validate_document
from tests.config.kinds.example_documents import changed, example

TOKEN = "spec.backend.auth.token"


@pytest.mark.parametrize("value", ["hunter2", 5, 1.5, True], ids=["text", "number", "float", "bool"])
def test_secret_as_text_states_what_to_write(value: Any) -> None:
    _, problems = validate_document(changed("Tool-ticket_create", TOKEN, value))

    assert [(problem.code, problem.path, problem.message) for problem in problems] == [
        (
            "secret-as-text",
            ("spec", "backend", "auth", "token"),
            "secrets are objects: write {fromEnv: NAME} or {fromFile: path}",
        )
    ]


@pytest.mark.parametrize(
    "value",
    ["hunter2", ["hunter2"], {"fromEnv": "hunter2 x"}, {"value": "hunter2"}, {"fromEnv": "A", "fromFile": "hunter2"}],
    ids=["text", "list", "bad name", "wrong key", "both"],
)
def test_no_problem_repeats_a_secret(value: Any) -> None:
    _, problems = validate_document(changed("Tool-ticket_create", TOKEN, value))

    assert problems
    assert "hunter2" not in repr([(problem.message, problem.help) for problem in problems])


def test_secret_is_masked_wherever_it_is_printed() -> None:
    tool, _ = validate_document(example("Tool-ticket_create"))

    assert tool is not None
    printed = (repr(tool), str(tool), repr(tool.model_dump()), tool.model_dump_json(by_alias=True))
    assert all("(secret)" in text for text in printed)
    assert not any("HELPDESK_TOKEN" in text for text in printed)


def test_secret_still_knows_where_it_comes_from() -> None:
    tool, _ = validate_document(example("Tool-ticket_create"))

    token = tool.spec.backend.auth.token  # type: ignore[union-attr]  # a Tool, as in the example
    assert (token.from_env, token.from_file) == ("HELPDESK_TOKEN", None)


@pytest.mark.parametrize("reference", [{"fromEnv": "HELPDESK_TOKEN"}, {"fromFile": "keys/helpdesk"}])
@pytest.mark.parametrize("by_alias", [True, False])
def test_reading_references_gives_the_place_of_a_secret(reference: dict[str, str], by_alias: bool) -> None:
    tool, _ = validate_document(changed("Tool-ticket_create", TOKEN, reference))

    assert tool is not None
    dumped = tool.model_dump(by_alias=by_alias, context={"references": True})
    assert dumped["spec"]["backend"]["auth"]["token"] == reference
    assert json.loads(tool.model_dump_json(context={"references": True})) == tool.model_dump(
        mode="json", context={"references": True}
    )


@pytest.mark.parametrize(
    "context",
    [None, {}, {"references": False}, {"references": "yes"}, {"references": 1}, ["references"], "references"],
    ids=repr,
)
def test_secret_stays_masked_unless_references_are_asked_for(context: Any) -> None:
    tool, _ = validate_document(example("Tool-ticket_create"))

    assert tool is not None
    assert tool.model_dump(context=context)["spec"]["backend"]["auth"]["token"] == "(secret)"


def test_environment_of_a_program_names_its_secrets_by_reference() -> None:
    env = {"LANG": "C", "TOKEN": {"fromEnv": "T"}, "KEY": {"fromFile": "keys/k"}}
    tool, _ = validate_document(changed("Tool-disk_usage", "spec.backend.env", env))

    assert tool is not None
    assert tool.model_dump(context={"references": True})["spec"]["backend"]["env"] == env
    assert tool.model_dump()["spec"]["backend"]["env"] == {"LANG": "C", "TOKEN": "(secret)", "KEY": "(secret)"}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("Tool-ticket_create", "spec.onCollision"),
        ("Tool-ticket_create", "spec.backend.method"),
        ("Tool-ticket_create", "kind"),
        ("Tool-ticket_create", "apiVersion"),
    ],
)
def test_value_from_the_environment_is_never_quoted(name: str, path: str) -> None:
    hidden = {tuple(path.split("."))}
    _, problems = validate_document(changed(name, path, "hunter2"), hidden=hidden)

    assert [problem.path for problem in problems] == list(hidden)
    assert "hunter2" not in repr(problems)


def test_part_of_a_value_from_the_environment_is_never_quoted() -> None:
    document = changed("Tool-ticket_create", "spec.backend.url", "https://example.com/{hunter2}")

    _, problems = validate_document(document, hidden={("spec", "backend", "url")})

    assert [problem.path for problem in problems] == [("spec", "backend", "url")]
    assert "hunter2" not in repr(problems)


def test_other_problems_of_a_document_with_hidden_values_stay_as_they_are() -> None:
    document = changed("Tool-ticket_create", "spec.onColision", "throw")

    _, problems = validate_document(document, hidden={("spec", "description")})

    assert problems == validate_document(document)[1]


def test_environment_of_a_program_takes_text_and_secrets() -> None:
    document = changed("Tool-disk_usage", "spec.backend.env", {"LANG": "C", "TOKEN": {"fromEnv": "T"}})

    assert validate_document(document)[1] == []


@pytest.mark.parametrize("context", [None, {"references": True}], ids=["masked", "references"])
def test_secret_that_may_be_left_out_is_dumped_as_nothing(context: Any) -> None:
    storage = example("Storage-shared")
    for key in ("accessKey", "secretKey"):
        del storage["spec"]["blobs"][key]
    document, problems = validate_document(storage)

    assert document is not None, problems
    assert document.model_dump(context=context)["spec"]["blobs"]["access_key"] is None
    assert "accessKey" not in document.model_dump_json(by_alias=True, exclude_defaults=True, context=context)
