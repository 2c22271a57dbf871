"""YAML text to data with positions: what is read, what is refused, and where the caret points."""

from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.config.yaml.document import MAX_BYTES, YamlDocument, split_lines
from gateway.config.yaml.parser import parse_bytes, parse_text
from gateway.config.yaml.tree_builder import MAX_ALIASES, MAX_DEPTH
from gateway.registries.diagnostics import Diagnostic, Position

BOTH = pytest.mark.parametrize("loader", [yaml.CSafeLoader, yaml.SafeLoader], ids=["c", "pure"])


def only(text: str) -> YamlDocument:
    documents, problems = parse_text(text, "a.yaml")
    assert problems == []
    assert len(documents) == 1
    return documents[0]


def found(text: str, *, loader: Any = yaml.CSafeLoader) -> list[tuple[str, int, int, int]]:
    """Code, line, column and width of every problem."""
    _, problems = parse_text(text, "a.yaml", loader=loader)
    return [(each.code, each.position.line, each.position.column, each.position.width) for each in problems]


def one(text: str) -> Diagnostic:
    (problem,) = parse_text(text, "a.yaml")[1]
    return problem


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("null", None),
        ("~", None),
        ("", None),
        ("true", True),
        ("false", False),
        ("0", 0),
        ("-7", -7),
        ("18446744073709551615", 2**64 - 1),
        ("0.5", 0.5),
        ("-12.250", -12.25),
        ("'5'", "5"),
        ('"null"', "null"),
        ("22:30", "22:30"),
        ("09:00", "09:00"),
        ("012", "012"),
        ("0x1F", "0x1F"),
        ("0o17", "0o17"),
        ("1_000", "1_000"),
        ("1e3", "1e3"),
        ("1.5e3", "1.5e3"),
        ("+1", "+1"),
        (".5", ".5"),
        ("1.", "1."),
        ("-", None),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("on", "on"),
        ("no", "no"),
        ("yes", "yes"),
        ("True", "True"),
        ("Null", "Null"),
        ("2026-11-16", "2026-11-16"),
        ("2026-11-16T10:00:00Z", "2026-11-16T10:00:00Z"),
        ("=", "="),
        ("10s", "10s"),
        ("-x", "-x"),
        ("٣", "٣"),
        ("|\n  one\n  two", "one\ntwo\n"),
        (">-\n  one\n  two", "one two"),
    ],
)
@BOTH
def test_scalar_is_what_all_yaml_readers_read(written: str, value: object, loader: Any) -> None:
    text = f"a: {written}\n" if written != "-" else "a:\n"
    documents, problems = parse_text(text, "a.yaml", loader=loader)

    assert problems == []
    assert documents[0].data == {"a": value}
    assert type(documents[0].data["a"]) is type(value)


def test_values_and_keys_know_their_tokens() -> None:
    document = only("# first\nkind: Tool\nspec:\n  limits: {timeout: 10s, sizes: [1, 22]}\n  empty:\n")

    assert document.data == {"kind": "Tool", "spec": {"limits": {"timeout": "10s", "sizes": [1, 22]}, "empty": None}}
    assert dict(document.positions) == {
        (): Position("a.yaml", 2, 1),
        ("kind",): Position("a.yaml", 2, 7, 4),
        ("spec",): Position("a.yaml", 4, 3),
        ("spec", "limits"): Position("a.yaml", 4, 11),
        ("spec", "limits", "timeout"): Position("a.yaml", 4, 21, 3),
        ("spec", "limits", "sizes"): Position("a.yaml", 4, 33),
        ("spec", "limits", "sizes", 0): Position("a.yaml", 4, 34, 1),
        ("spec", "limits", "sizes", 1): Position("a.yaml", 4, 37, 2),
        ("spec", "empty"): Position("a.yaml", 5, 9, 1),
    }
    assert dict(document.key_positions) == {
        ("kind",): Position("a.yaml", 2, 1, 4),
        ("spec",): Position("a.yaml", 3, 1, 4),
        ("spec", "limits"): Position("a.yaml", 4, 3, 6),
        ("spec", "limits", "timeout"): Position("a.yaml", 4, 12, 7),
        ("spec", "limits", "sizes"): Position("a.yaml", 4, 26, 5),
        ("spec", "empty"): Position("a.yaml", 5, 3, 5),
    }
    assert len(document.positions) == 9
    assert ("spec",) in document.positions


def test_position_of_what_is_absent_is_that_around_it() -> None:
    document = only("spec:\n  limits: {}\n  list: [a]\n")

    assert document.position(("spec", "limits", "timeout", 3)) == document.position(("spec", "limits"))
    assert document.position(("metadata",)) == Position("a.yaml", 1, 1)
    assert document.key_position(("spec", "list", 0)) == Position("a.yaml", 3, 10, 1)
    assert document.key_position(("spec", "limits", "timeout")) == document.position(("spec", "limits"))


def test_columns_count_characters_whatever_the_line_breaks() -> None:
    document = only("é: 漢字\r\nb: {ü: 1}\rc: 2\n")

    assert document.position(("é",)) == Position("a.yaml", 1, 4, 2)
    assert document.position(("b", "ü")) == Position("a.yaml", 2, 8, 1)
    assert document.position(("c",)) == Position("a.yaml", 3, 4, 1)


@pytest.mark.parametrize("text", ["", "\n", "# only a comment\n", "---\n", "---\n---\n...\n", "\ufeff", "null\n"])
def test_empty_documents_are_fine(text: str) -> None:
    assert parse_text(text, "a.yaml") == ([], [])


def test_byte_order_mark_is_not_a_column() -> None:
    documents, problems = parse_bytes(b"\xef\xbb\xbfa: 1\n", "a.yaml")

    assert problems == []
    assert documents[0].key_position(("a",)) == Position("a.yaml", 1, 1, 1)


def test_documents_of_one_file_keep_their_lines() -> None:
    documents, problems = parse_text("a: 1\n---\n# note\nb: 2\n--- {c: 3}\n", "a.yaml")

    assert problems == []
    assert [each.data for each in documents] == [{"a": 1}, {"b": 2}, {"c": 3}]
    assert [each.position(()).line for each in documents] == [1, 4, 5]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("a: {b: 1\nc: 2\n", [("yaml-syntax", 2, 2, 1)]),
        ("a: b: c\n", [("yaml-syntax", 1, 5, 1)]),
        ("a: [1, \n\n", [("yaml-syntax", 1, 7, 1)]),
        ("[", [("yaml-syntax", 1, 2, 1)]),
        ("a:\n\tb: 1\n", [("yaml-syntax", 2, 1, 1)]),
        ("a: @x\n", [("yaml-syntax", 1, 4, 1)]),
        ("a: 1\nb: 2\na: 3\nb: 4\n", [("duplicate-key", 3, 1, 1), ("duplicate-key", 4, 1, 1)]),
        ("a: {long: 1, 'long': 2}\n", [("duplicate-key", 1, 14, 6)]),
        ("a: 1\na: {b: 1, b: 2}\n", [("duplicate-key", 2, 1, 1), ("duplicate-key", 2, 11, 1)]),
        ("404: 1\n'404': 2\n", [("duplicate-key", 2, 1, 5)]),
        ("a: !!str 5\n", [("yaml-tag", 1, 4, 5)]),
        ("a: &x !python/object:os.system [1]\n", [("yaml-tag", 1, 7, 24)]),
        ("a: !<tag:x> {b: 1}\n", [("yaml-tag", 1, 4, 8)]),
        ("a: [! x]\n", [("yaml-tag", 1, 5, 1)]),
        ("!t a: 1\n", [("yaml-tag", 1, 1, 2)]),
        ("!end", [("yaml-tag", 1, 1, 4)]),
        ("true: 1\n1.5: 2\n~: 3\n", [("key-type", 1, 1, 4), ("key-type", 2, 1, 3), ("key-type", 3, 1, 1)]),
        ("?\n: 1\n", [("key-type", 1, 2, 1)]),
        ("? [a, b]\n: {c: 1, c: 2}\nd: 1\n", [("key-type", 1, 3, 1), ("duplicate-key", 2, 10, 1)]),
        ("? {a: 1}\n: 1\n", [("key-type", 1, 3, 1)]),
        ("a: &x [1]\n*x : 1\n", [("key-type", 2, 1, 2)]),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", [("merge-key", 3, 3, 2)]),
        ("a: &x [1, *x]\n", [("anchor-cycle", 1, 11, 2)]),
        ("a: &x {b: {c: *x}}\n", [("anchor-cycle", 1, 15, 2)]),
        ("a: *nowhere\n", [("unknown-anchor", 1, 4, 8)]),
        ("a: &x 1\n---\nb: *x\n", [("unknown-anchor", 3, 4, 2)]),
        ("- 1\n- 2\n", [("not-a-mapping", 1, 1, 1)]),
        ("just text\n", [("not-a-mapping", 1, 1, 9)]),
        ("a: 1\n---\n[1, {b: 1, b: 2}]\n", [("not-a-mapping", 3, 1, 1), ("duplicate-key", 3, 12, 1)]),
        ("*x", [("unknown-anchor", 1, 1, 2)]),
        ("a: 18446744073709551616\n", [("number-range", 1, 4, 20)]),
        ("a: -9223372036854775809\n", [("number-range", 1, 4, 20)]),
        (f"a: {'9' * 400}.0\n", [("number-range", 1, 4, 402)]),
        ("a: x\x00y\n", [("control-character", 1, 5, 1)]),
        ("a: 1\nb: \x1b[31mred\n", [("control-character", 2, 4, 1)]),
        ("a: admin\u202e\u2066\n", [("control-character", 1, 9, 1), ("control-character", 1, 10, 1)]),
        ("a: hidden\U000e0041\n", [("control-character", 1, 10, 1)]),
        ("a: x\ufeff\n", [("control-character", 1, 5, 1)]),
        ("a: \ud800\n", [("control-character", 1, 4, 1)]),
    ],
)
def test_problem_points_at_its_token(text: str, problems: list[tuple[str, int, int, int]]) -> None:
    assert found(text) == problems


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("a: b: c", "put a value that contains ': ' in quotes"),
        ("a:\n\tb: 1", "indent with spaces, not tabs"),
        ("a: `b`", "put the value in quotes"),
        ("a: 'x\n", "close the quote"),
        ("a: *\n", "put a value that starts with '*' in quotes"),
        ("a: & b\n", "put a value that starts with '&' in quotes"),
        ("a: 1\nb\n", "write each line of a mapping as 'key: value'"),
        ("a: [1,\n", "close the bracket or brace that is open above"),
        ("a: [1,\n---\n", "close the bracket or brace that is open above"),
        ('a: "\\q"\n', None),
        ("yes: 1\n0.5: 1\n", 'put it in quotes: "0.5"'),
        ("?\n: 1\n", "write a key in front of ':'"),
        ("base: &default {}\nb: *defualt\n", "did you mean 'default'?"),
        ("b: *default\n", "mark the value with '&default'"),
        ("a: \u202e", 'remove it, or write it as "\\u202E" in double quotes'),
        ("a: \U000e0041", 'remove it, or write it as "\\U000E0041" in double quotes'),
    ],
)
def test_problem_states_what_to_do(text: str, help: str | None) -> None:
    assert one(text).help == help


def test_repeated_key_names_the_first_and_keeps_its_value() -> None:
    documents, (problem,) = parse_text("spec:\n  outside: {a: 1}\n  outside: {b: 2}\n", "a.yaml")

    assert problem.message == "the key 'outside' is repeated"
    assert problem.related == (("the first one", Position("a.yaml", 2, 3, 7)),)
    assert documents[0].data == {"spec": {"outside": {"a": 1}}}
    assert ("spec", "outside", "b") not in documents[0].positions


def test_long_names_are_cut_in_messages() -> None:
    assert one(f"a: *{'x' * 500}\n").message == f"there is no anchor '{'x' * 60}…' before this alias"


def test_escaped_characters_are_read() -> None:
    assert only('a: "\\u202E \\x1B"\n').data == {"a": "\u202e \x1b"}


def test_whole_numbers_may_be_keys_and_are_text() -> None:
    document = only("errors: {404: not-found, 18446744073709551616: big}\n")

    assert document.data == {"errors": {"404": "not-found", "18446744073709551616": "big"}}


@BOTH
def test_syntax_error_hides_neither_documents_before_nor_after(loader: Any) -> None:
    text = "a: 1\na: 2\n---\nb: 'x\n---\nc: [\n---\nd: 1\nd: 2\n--- ]\n---\ne: 1\n"
    documents, _ = parse_text(text, "a.yaml", loader=loader)

    assert [each.data for each in documents] == [{"a": 1}, {"d": 1}, {"e": 1}]
    assert documents[-1].position(()) == Position("a.yaml", 12, 1)
    assert found(text, loader=loader) == [
        ("duplicate-key", 2, 1, 1),
        ("yaml-syntax", 5, 1, 1),
        ("yaml-syntax", 7, 1, 1),
        ("duplicate-key", 9, 1, 1),
        ("yaml-syntax", 10, 5, 1),
    ]


def test_syntax_error_states_where_the_construct_began() -> None:
    problem = one("a: {b: 1,\n    c: 2\nd: 3\n")

    assert problem.message == "did not find expected ',' or '}'"
    assert problem.related == (("while parsing a flow mapping", Position("a.yaml", 1, 4)),)


def test_document_after_a_tag_and_an_error_keeps_its_columns() -> None:
    assert found("a: [\n---\n\nb: !x 1\n") == [("yaml-syntax", 2, 1, 1), ("yaml-tag", 4, 4, 2)]


def test_syntax_errors_are_not_searched_for_without_end() -> None:
    codes = [code for code, *_ in found("--- [\n" * 500)]

    assert sorted(codes) == ["too-many-problems"] + ["yaml-syntax"] * 20


def test_problems_are_reported_up_to_a_hundred() -> None:
    codes = [code for code, *_ in found("a: 1\n" * 5_000)]

    assert codes[:-1] == ["duplicate-key"] * 100
    assert codes[-1] == "too-many-problems"


def test_no_name_is_suggested_among_very_many_anchors() -> None:
    anchors = "".join(f"a{number}: &default{number} 1\n" for number in range(1_000))

    assert one(f"{anchors}b: *defualt1\n").help == "mark the value with '&defualt1'"


def test_aliases_share_what_they_stand_for() -> None:
    document = only("base: &b {x: [1, 2]}\nname: &n key\ncopy: *b\nlist: [*n, *b]\n*n : 1\n&k k2: *k\n")

    assert document.data["copy"] == {"x": [1, 2]}
    assert document.data["list"] == ["key", {"x": [1, 2]}]
    assert document.data["key"] == 1
    assert document.data["k2"] == "k2"
    assert document.position(("copy", "x", 1)) == Position("a.yaml", 3, 7, 2)


def test_a_hundred_aliases_are_enough() -> None:
    allowed = "a: &x 1\nb: [" + "*x, " * MAX_ALIASES + "]\n"

    assert found(allowed) == []
    assert found(allowed + "c: *x\nd: *x\n") == [("alias-limit", 3, 4, 2)]


def test_aliases_are_counted_over_all_documents_of_a_file() -> None:
    text = "---\na: &x 1\nb: [" + "*x, " * 60 + "]\n"

    assert [code for code, *_ in found(text * 2)] == ["alias-limit"]


@BOTH
def test_alias_bomb_is_refused_before_it_grows(loader: Any) -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    )

    documents, problems = parse_text(bomb, "a.yaml", loader=loader)

    assert [each.code for each in problems] == ["alias-limit"]
    assert problems[0].message == "aliases for more than 1 MiB of text in one file"
    assert documents[0].data["i"] == [None] * 9


def test_aliases_cannot_add_up_to_deep_nesting() -> None:
    text = "a: &a " + "[" * 40 + "]" * 40 + "\nb: &b " + "[" * 23 + "*a" + "]" * 23 + "\nc: [*b]\nd: [[*b]]\n"

    assert [code for code, *_ in found(text)] == ["too-deep", "too-deep"]


@BOTH
def test_nesting_has_a_limit(loader: Any) -> None:
    inside = MAX_DEPTH - 1

    assert found("a: " + "[" * inside + "]" * inside, loader=loader) == []
    assert found("a: " + "[" * (inside + 1) + "]" * (inside + 1), loader=loader) == [("too-deep", 1, 67, 1)]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
@BOTH
def test_hundred_thousand_levels_are_refused_without_recursion(opening: str, loader: Any) -> None:
    text = opening * 100_000 + "\n---\na: 1\na: 2\n"

    assert [code for code, *_ in found(text, loader=loader)] == ["too-deep", "duplicate-key"]


def test_file_may_have_one_mebibyte() -> None:
    text = "a: " + "é" * ((MAX_BYTES - 4) // 2) + "\n"

    assert len(text.encode()) == MAX_BYTES
    assert found(text) == []
    assert found(text + "#") == [("file-too-large", 1, 1, 1)]
    assert [each.code for each in parse_bytes(text.encode() + b"#", "a.yaml")[1]] == ["file-too-large"]
    assert found("x" * (MAX_BYTES + 1)) == [("file-too-large", 1, 1, 1)]


@pytest.mark.parametrize(
    ("data", "message", "line", "column"),
    [
        (b"a: 1\nb: \xff\n", "byte 0xff is not UTF-8", 2, 4),
        ("é: ".encode() + b"\xc3(", "byte 0xc3 is not UTF-8", 1, 4),
        (b"\xef\xbb\xbfa\xff", "byte 0xff is not UTF-8", 1, 2),
        ("a: 1\n".encode("utf-16"), "the file is UTF-16", 1, 1),
        (b"a: 1\r\nb: \xe9t\xe9\r\n", "byte 0xe9 is not UTF-8", 2, 4),
    ],
    ids=["stray", "cut", "after-bom", "utf-16", "latin-1"],
)
def test_other_encodings_are_refused_at_the_byte(data: bytes, message: str, line: int, column: int) -> None:
    documents, (problem,) = parse_bytes(data, "a.yaml")

    assert documents == []
    assert problem == Diagnostic(
        "bad-encoding", message, Position("a.yaml", line, column), help="save the file as UTF-8"
    )


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(-1e6, 1e6).map(lambda number: round(number, 3)).filter(lambda number: "e" not in repr(number))
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp", "Cn"]), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abcxyz_é-漢 0", max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


class Quoting(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def quoted(self, data: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"')


Quoting.add_representer(str, Quoting.quoted)


def starts(value: object) -> tuple[str, ...]:
    match value:
        case dict():
            return ("{", '"', "?")
        case list():
            return ("[", "-")
        case str():
            return ('"',)
        case None:
            return ("null",)
        case bool():
            return (str(value).lower(),)
        case _:
            return (str(value),)


@given(data=st.dictionaries(st.text("abc é", max_size=5), PLAIN, min_size=1, max_size=4), flow=st.booleans())
@example(data={"a": {"b": [[]], "c": {}}}, flow=False)
def test_dumped_data_comes_back_with_exact_positions(data: dict[str, Any], flow: bool) -> None:
    text = yaml.dump(data, Dumper=Quoting, allow_unicode=True, default_flow_style=flow, width=1 << 20)

    document = only(text)

    assert document.data == data
    shown = split_lines(text)
    for path, position in document.positions.items():
        value: Any = data
        for part in path:
            value = value[part]
        token = shown[position.line - 1][position.column - 1 :]
        assert token.startswith(starts(value))
        if not isinstance(value, dict | list):
            assert yaml.safe_load(token[: position.width]) == value
    for path, position in document.key_positions.items():
        token = shown[position.line - 1][position.column - 1 :][: position.width]
        assert yaml.safe_load(token) == path[-1]


@given(text=st.text(st.sampled_from("ab:-?#&*!|>'\"%@{}[],~ \n\t\r\x85\u2028\ufeff\x00<1.$"), max_size=60))
@BOTH
def test_any_text_gives_documents_or_diagnostics(text: str, loader: Any) -> None:
    documents, problems = parse_text(text, "a.yaml", loader=loader)

    last = len(split_lines(text))
    assert all(1 <= each.position.line <= last and each.position.column >= 1 for each in problems)
    assert all(isinstance(each.data, dict) and () in each.positions for each in documents)


@given(data=st.binary(max_size=60))
def test_any_bytes_give_documents_or_diagnostics(data: bytes) -> None:
    parse_bytes(data, "a.yaml")
