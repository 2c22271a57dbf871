"""Field documentation: every field is reachable, and unknown ones get a suggestion."""

from collections.abc import Iterator

import pytest

from gateway.config.field_docs import UnknownField, explain_schema_field
from gateway.config.field_introspection import FieldType, ListField, MapField, ObjectField, UnionField, list_fields
from gateway.config.kinds.validation import KINDS


def paths_under(shape: FieldType, path: str) -> Iterator[tuple[str, str]]:
    match shape:
        case ObjectField(model=model):
            for name, part in list_fields(model).items():
                yield f"{path}.{name}", part.description
                yield from paths_under(part.shape, f"{path}.{name}")
        case ListField(item=inner) | MapField(value=inner):
            yield from paths_under(inner, path)
        case UnionField(tag=tag, shapes=shapes):
            for name, each in shapes:
                yield from paths_under(each, f"{path}.{name}" if tag else path)
        case _:
            return


PATHS = [found for kind in KINDS.values() for found in paths_under(ObjectField(kind.model), kind.name)]


def test_every_field_is_reachable() -> None:
    unexplained = [
        path for path, description in PATHS if f"{path}\n\n  {description}\n" not in explain_schema_field(path)
    ]

    assert len(PATHS) > 400
    assert unexplained == []


def test_kind_shows_its_summary_and_fields() -> None:
    assert explain_schema_field("Tool") == (
        "Tool\n"
        "\n"
        "  Something that an agent can call.\n"
        "\n"
        "fields:\n"
        "  apiVersion <gateway/v1> required\n"
        "    Version of the format.\n"
        "  kind <Tool> required\n"
        "    Kind of the document.\n"
        "  metadata <a mapping> required\n"
        "    Name and owner of the document.\n"
        "  spec <a mapping> required\n"
        "    Description, trust, input, output and backend of the tool.\n"
    )


@pytest.mark.parametrize("name", ["Tool", "tool", "TOOL", "tools"])
def test_kind_is_found_in_any_case_and_in_plural(name: str) -> None:
    assert explain_schema_field(name) == explain_schema_field("Tool")


def test_union_lists_its_variants_by_tag() -> None:
    assert explain_schema_field("tool.spec.backend") == (
        "Tool.spec.backend\n"
        "\n"
        "  Backend that executes a call.\n"
        "\n"
        "  type:     a mapping, by type: http | python | command | mcp | openapi\n"
        "  required: yes\n"
        "\n"
        "one of, by type:\n"
        "  http: One HTTP request per call, to a fixed host.\n"
        "  python: A Python function. The process must allow its package.\n"
        "  command: A program on this host, started without a shell.\n"
        "  mcp: A tool of an upstream server, published with the name, description and trust of this document.\n"
        "  openapi: An OpenAPI operation, published with the name, description and trust of this document.\n"
    )


def test_scalar_states_how_to_write_it_and_its_default() -> None:
    assert explain_schema_field("gaterule.spec.holdFor") == (
        "GateRule.spec.holdFor\n"
        "\n"
        "  How long a held call waits before it returns that a decision is pending.\n"
        "\n"
        "  type:     a duration\n"
        "  required: no\n"
        "  default:  45s\n"
        "  how:      write a number and a unit: 10s, 5m, 2h, 1d\n"
    )


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("telemetry.spec.traces.sample.ratio", "type:     a number, at least 0, at most 1"),
        ("gaterule.spec.mode", "type:     enforce | observe | disabled"),
        ("gaterule.spec.check.open.days", "type:     a list of: mon | tue | wed | thu | fri | sat | sun"),
        ("catalogue.spec.publish.as", 'default:  ["mcp", "http"]'),
        ("artifactclass.spec.queries", "type:     all or a list of: a name"),
        ("tool.spec.trust.trusted", "default:  false"),
        ("tool.metadata.labels", "type:     a mapping from a name to text on one line"),
        ("policytest.spec.cases.discover", "type:     true"),
        ("tool.spec.backend.env", "  a mapping: Reference to a secret. The secret itself is never"),
        ("tool.spec.backend.env.fromEnv", "Environment variable that holds it."),
        ("policytest.spec.cases[].as.subject", "type:     a subject"),
    ],
)
def test_page_states_what_a_field_takes(path: str, line: str) -> None:
    assert line in explain_schema_field(path)


def test_tag_may_be_left_out() -> None:
    assert explain_schema_field("tool.spec.backend.url") == explain_schema_field("tool.spec.backend.http.url")


def test_field_of_several_variants_is_explained_for_each() -> None:
    page = explain_schema_field("identityprovider.spec.subject")

    assert "IdentityProvider.spec.jwt.subject\n" in page
    assert "IdentityProvider.spec.none.subject\n" in page


def test_recursive_page_holds_everything_below() -> None:
    page = explain_schema_field("gaterule", recursive=True)

    descriptions = [description for path, description in PATHS if path.startswith("GateRule.")]
    assert [text for text in descriptions if text not in page] == []
    assert len(page) > len(explain_schema_field("gaterule")) * 10


def test_empty_path_lists_all_kinds() -> None:
    lines = explain_schema_field("").splitlines()

    assert [line.split()[0] for line in lines] == list(KINDS)


@pytest.mark.parametrize(
    ("path", "message", "help"),
    [
        ("tol", "there is no kind 'tol'", "did you mean 'Tool'?"),
        ("zzz", "there is no kind 'zzz'", "kinds: Gateway, IdentityProvider,"),
        ("tool.spec.backnd", "'backnd' is not a field of Tool.spec", "did you mean 'backend'?"),
        ("tool.spec.backend.htp", "'htp' is not a field of Tool.spec.backend", "did you mean 'http'?"),
        ("tool.spec.backend.methd", "'methd' is not a field of Tool.spec.backend", "did you mean 'method'?"),
        ("tool.metadata.zzz", "'zzz' is not a field of Tool.metadata", "fields: name, title, owner, labels,"),
        ("tool.spec.version.x", "'x' is not a field of Tool.spec.version", "it has no fields"),
        ("artifactclass.spec.queries.word", "'word' is not a field of ArtifactClass.spec.queries", "it has no fields"),
    ],
)
def test_unknown_path_suggests_a_near_one(path: str, message: str, help: str) -> None:
    with pytest.raises(UnknownField) as error:
        explain_schema_field(path)

    assert error.value.message == message
    assert (error.value.help or "").startswith(help)


def test_hostile_path_is_cut_in_the_message() -> None:
    with pytest.raises(UnknownField) as error:
        explain_schema_field("x" * 1_000_000)

    assert len(error.value.message) < 100
