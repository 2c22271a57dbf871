"""The effective file loads again to the same configuration, and never shows values from the environment."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config.document_checks import document_identity
from gateway.config.effective_yaml import render_effective_yaml
from gateway.config.environment_variables import substitute_environment
from gateway.config.kinds.validation import KINDS
from gateway.config.overlays import apply_overlays, is_overlay
from gateway.config.yaml.document import YamlDocument
from gateway.config.yaml.parser import parse_text
from gateway.registries.diagnostics import Position
from tests.config.kinds.example_documents import FILES

ENVIRON = {"HOST": "hunter2.example", "KEY": "hunter3", "EMPTY": ""}


def read(text: str, file: str = "configs/a.yaml", *, loader: Any = None) -> list[YamlDocument]:
    documents, problems = parse_text(text, file, loader=loader) if loader else parse_text(text, file)
    assert problems == []
    return documents


def substitute(text: str, file: str = "configs/a.yaml") -> list[YamlDocument]:
    return [substitute_environment(document, ENVIRON)[0] for document in read(text, file)]


def make_document(data: dict[str, Any], file: str = "a.yaml") -> YamlDocument:
    return YamlDocument(data, file, {(): Position(file, 1)}, {})


def exact(value: Any) -> Any:
    """The value with the type of each scalar, because 1, 1.0 and true are equal, and so are 0.0 and -0.0."""
    match value:
        case dict():
            return {key: exact(each) for key, each in value.items()}
        case list():
            return [exact(each) for each in value]
    return type(value).__name__, repr(value)


def by_identity(documents: list[YamlDocument]) -> dict[tuple[str, str] | None, Any]:
    return {document_identity(document): exact(document.data) for document in documents}


WRITTEN = """\
kind: Storage
apiVersion: gateway/v1
spec:
  type: sqlite
  path: ${DATA:-/var/lib/gateway}/gateway.db
  retain: {audit: 400d}
metadata: {name: main, owner: team-platform}
extra: [[], {}, [a, [b]], {c: null, d: true}]
---
kind: Gateway
metadata: {name: acme, labels: {"on": "yes", "8": "22:30"}}
spec:
  prose: |
    One line,

      and another.
  host: https://${HOST}:8443
  price: 5 $$
  numbers: [1, -2.50, "1", 012, 1e3]
"""

PRINTED = """\
kind: Gateway
metadata:
  name: acme
  labels:
    "on": "yes"
    "8": "22:30"
spec:
  prose: |
    One line,

      and another.
  host: https://${HOST}:8443
  price: "5 $$"
  numbers:
    - 1
    - -2.5
    - "1"
    - "012"
    - "1e3"
---
apiVersion: gateway/v1
kind: Storage
metadata:
  name: main
  owner: team-platform
spec:
  type: sqlite
  path: ${DATA:-/var/lib/gateway}/gateway.db
  retain:
    audit: 400d
extra:
  - []
  - {}
  - - a
    - - b
  - c: null
    d: true
"""

WITH_ORIGINS = """\
kind: Gateway # configs/a.yaml:10
metadata:
  name: acme # configs/a.yaml:11
  labels:
    "on": "yes" # configs/a.yaml:11
    "8": "22:30" # configs/a.yaml:11
spec:
  prose: | # configs/a.yaml:13
    One line,

      and another.
  host: https://${HOST}:8443 # configs/a.yaml:17
"""


def test_documents_are_printed_in_one_form_and_order() -> None:
    assert render_effective_yaml(substitute(WRITTEN), origins=False) == PRINTED


def test_every_value_names_its_origin() -> None:
    printed = render_effective_yaml(substitute(WRITTEN), origins=True)

    assert printed.startswith(WITH_ORIGINS)
    assert "  - [] # configs/a.yaml:8\n  - {} # configs/a.yaml:8\n  - - a # configs/a.yaml:8\n" in printed


@pytest.mark.parametrize("origins", [False, True])
def test_printed_documents_load_again_to_the_same(origins: bool) -> None:
    before = substitute(WRITTEN)

    after = substitute(render_effective_yaml(before, origins=origins))

    assert [exact(each.data) for each in after] == [exact(each.data) for each in (before[1], before[0])]
    assert render_effective_yaml(after, origins=False) == PRINTED


def test_values_of_an_overlay_are_printed_as_the_overlay_has_them() -> None:
    base = substitute("kind: Tool\nmetadata: {name: t}\nspec: {a: '${KEY}', b: {c: '${KEY}', d: 1}, e: [1, 2]}\n")
    change = substitute(
        "kind: Overlay\nspec:\n  environment: prod\n  patches:\n  - target: {kind: Tool, name: t}\n"
        "    merge: {a: '${HOST:-x}', b: {c: plain}, e: ['$$', '${EMPTY:-y}'], f: {g: '${KEY}'}}\n",
        "configs/prod.yaml",
    )

    effective, _ = apply_overlays(base, change, environment="prod")

    assert render_effective_yaml(effective, origins=True) == (
        "kind: Tool # configs/a.yaml:1\n"
        "metadata:\n"
        "  name: t # configs/a.yaml:2\n"
        "spec:\n"
        "  b:\n"
        "    d: 1 # configs/a.yaml:3\n"
        "    c: plain # configs/prod.yaml:6\n"
        "  a: ${HOST:-x} # configs/prod.yaml:6\n"
        "  e:\n"
        "    - $$ # configs/prod.yaml:6\n"
        "    - ${EMPTY:-y} # configs/prod.yaml:6\n"
        "  f:\n"
        "    g: ${KEY} # configs/prod.yaml:6\n"
    )


def test_nothing_that_the_environment_filled_in_is_printed() -> None:
    text = (
        "a: ${HOST}\nb: ['x-${KEY}', &k '${KEY:-z}', *k]\nc: |\n  one ${HOST}\n  two ${KEY}\nd: {e: {f: '${KEY:?g}'}}\n"
    )

    printed = render_effective_yaml(substitute(text), origins=True)

    assert "hunter" not in printed
    assert printed.count("${") == 7


def test_value_that_could_not_be_filled_in_is_printed_as_it_stands() -> None:
    documents = substitute("a: ${NONE} $$\nb: $${KEY}\nc: '${'\n")

    assert render_effective_yaml(documents, origins=False) == "a: ${NONE} $$\nb: $${KEY}\nc: ${\n"


def test_kinds_come_in_the_order_people_read_them_then_names() -> None:
    kinds = ["Zebra", *sorted(KINDS)]
    documents = [make_document({"kind": kind, "metadata": {"name": name}}) for name in "ba" for kind in kinds]

    printed = read(render_effective_yaml([make_document({"spec": {}}), *documents], origins=False))

    found = [(each.data.get("kind"), each.data.get("metadata", {}).get("name")) for each in printed]
    assert found == [*((kind, name) for kind in KINDS for name in "ab"), (None, None), ("Zebra", "a"), ("Zebra", "b")]


def test_no_documents_are_an_empty_text() -> None:
    assert render_effective_yaml([], origins=True) == ""
    assert read(render_effective_yaml([make_document({}), make_document({})], origins=False)) != []


def test_name_of_a_file_cannot_leave_its_comment() -> None:
    document = YamlDocument({"a": 1}, "x", {(): Position("b\nc: 2\u2028d: 3\u202e.yaml", 1)}, {})

    printed = render_effective_yaml([document], origins=True)

    assert printed == "a: 1 # b\\u000ac: 2\\u2028d: 3\\u202e.yaml:1\n"
    assert [each.data for each in read(printed)] == [{"a": 1}]


ODD = [
    *("", " ", "a ", " a", "~", "null", "Null", "NULL", "true", "True", "FALSE", "y", "N", "yes", "No", "on", "OFF"),
    *("1", "-1", "+1", "012", "0o7", "0x1F", "0b1", "1_000", "1e3", "1.5", ".5", "5.", "-.inf", ".NaN", "1E5", "1e"),
    *(
        "22:30",
        "190:20:30",
        "2026-11-16",
        "2026-11-16T10:00:00Z",
        "2001-12-14 21:59:43.10 -5",
        "10s",
        "256KiB",
        "1.0.0",
    ),
    *("<<", "=", "-", "- a", "--- a", "---", "...", "? a", "?", ":", ": a", "a:", "a: b", "a:b", "a #b", "#a", "a#b"),
    *(
        "&a",
        "*a",
        "!a",
        "!!str a",
        "|",
        ">",
        "%a",
        "@a",
        "`a`",
        "'a'",
        '"a"',
        "it's",
        "[a]",
        "{a: b}",
        "a, b",
        "a]",
        "a}",
    ),
    *(
        "a\\nb",
        "\\",
        "${A:-x}",
        "$.a[*].b",
        "a\nb",
        "a\n",
        "\na",
        "a\n\n",
        "a\n b",
        " a\nb",
        "a\n \nb",
        "a\nb ",
        "a\n\t",
    ),
    *(
        "a\n---\nb",
        "a\n# b\n",
        "a\r\nb",
        "a\rb",
        "a\tb",
        "a\x85b",
        "a\u2028b",
        "\ufeffa",
        "a\u202eb",
        "a\x00b",
        "é",
        "日本",
    ),
    *("👩‍👩‍👧", "\U000e0041", "\ufffe", "\x7f", "\xa0", "x" * 2_000, "a b  c   d", "/etc", "_a", "http://h:1/?a=b&c=d"),
]


@pytest.mark.parametrize("text", ODD, ids=lambda text: ascii(text)[:40])
def test_text_is_read_as_that_text_by_every_reader(text: str) -> None:
    data = {"a": text, "b": [text, {text: text}], text: {"c": [[text]]}}

    for origins in (False, True):
        printed = render_effective_yaml([make_document(data)], origins=origins)
        assert [each.data for each in read(printed)] == [data]
        assert [each.data for each in read(printed, loader=yaml.SafeLoader)] == [data]
        assert yaml.safe_load(printed) == data


@pytest.mark.parametrize(
    "number", [0, -0.0, 1.0, 1e22, 1e-7, 5e-324, sys.float_info.max, -(1 << 63), (1 << 64) - 1, 0.1 + 0.2], ids=repr
)
def test_number_is_read_as_that_number_by_every_reader(number: float) -> None:
    printed = render_effective_yaml([make_document({"a": number})], origins=False)

    assert [exact(each.data) for each in read(printed)] == [exact({"a": number})]
    assert exact(yaml.safe_load(printed)) == exact({"a": number})


def test_every_character_is_read_as_itself() -> None:
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
    for start in range(0, len(every), 50_000):
        data = {"a": "".join(every[start : start + 50_000])}
        assert [each.data for each in read(render_effective_yaml([make_document(data)], origins=False))] == [data]


TEXTS = st.text(max_size=12) | st.text(" \n\t#:-'\"$a{}[]|&*!?,0é", max_size=12) | st.sampled_from(ODD)
NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is not a failure


@UNHURRIED
@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), max_size=3), st.booleans())
def test_any_data_is_read_again_as_it_was(everything: list[dict[str, Any]], origins: bool) -> None:
    printed = render_effective_yaml([make_document(data) for data in everything], origins=origins)

    assert [exact(each.data) for each in read(printed)] == [exact(data) for data in everything]
    assert [exact(data) for data in yaml.safe_load_all(printed)] == [exact(data) for data in everything]


DOLLARS = st.lists(
    st.sampled_from(["$", "$$", "${HOST}", "${NONE:-d $$}", "${KEY:?x}", "${NONE}", "${", "}", "a", "\n", " "]),
    max_size=6,
).map("".join)


@UNHURRIED
@given(st.dictionaries(st.sampled_from("abc"), DOLLARS | st.lists(DOLLARS, max_size=3), max_size=3))
def test_any_filled_document_is_filled_again_as_it_was(data: dict[str, Any]) -> None:
    before, _, _ = substitute_environment(make_document(data), ENVIRON)

    printed = render_effective_yaml([before], origins=False)
    (again,) = read(printed)

    assert "hunter" not in printed
    assert again.data == data
    assert substitute_environment(again, ENVIRON)[0].data == before.data


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("origins", [False, True])
def test_example_documents_mean_the_same_when_printed(file: Path, origins: bool) -> None:
    before = substitute(file.read_text(encoding="utf-8"))
    printed = render_effective_yaml(before, origins=origins)

    after = substitute(printed)

    assert by_identity(after) == by_identity(before)
    assert list(yaml.safe_load_all(printed)) == [each.data for each in read(printed)]


def test_overlays_are_printed_like_other_documents() -> None:
    documents = read("kind: Overlay\nmetadata: {name: prod}\nspec: {environment: prod, patches: []}\n")

    assert all(map(is_overlay, read(render_effective_yaml(documents, origins=False))))
