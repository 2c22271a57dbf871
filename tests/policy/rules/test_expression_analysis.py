"""The names that an expression mentions, whatever its strings and comments contain."""

import pytest

from gateway.policy.rules.expression_analysis import (
    ExpressionText,
    find_read_call_fields,
    find_read_fields,
    find_saw_flags,
    line_and_column,
)


def test_texts_and_comments_are_spaces_and_the_rest_stands_where_it_stood() -> None:
    source = 'args.a == "x + y" // a + b\n&& args.b == r"\\" || true'

    plain = ExpressionText.of(source).plain

    assert len(plain) == len(source)
    assert plain.index("args.b") == source.index("args.b")
    assert "+" not in plain
    assert plain.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "depths", "power"),
    [
        ("true", [], 0),
        ("args.a.all(x, x > 1)", [1], 1),
        ("args.a.all(x, args.b.exists(y, y == x)) && args.c.exists_one(z, z)", [1, 2, 1], 2),
        ("args.a.map(x, x).all(y, y)", [1, 1], 2),
        ('args.a == ".all(x, 1)"', [], 0),
        ("args.all > 1 && args.filter(1)", [], 0),
        ("args.a.all(x, [1].all(y, y", [1, 2], 2),
    ],
)
def test_comprehensions_are_found_with_their_depth(source: str, depths: list[int], power: int) -> None:
    text = ExpressionText.of(source)

    assert [each.depth for each in text.comprehensions] == depths
    assert text.power == power


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("args.a > 1 && args . b == 2", {"a", "b"}),
        ("args['a-b'] == 1 && args[ \"c\" ] == 2", {"a-b", "c"}),
        ("has(args.a)", {"a"}),
        ("true", set()),
        ("caller.args > 1 && x . args > 2", set()),
        ("size(args) > 1", None),
        ("args.all(x, true)", None),
        ("args[args.a] == 1", None),
        ("myargs.a > 1", set()),
    ],
)
def test_fields_that_are_looked_at(source: str, fields: set[str] | None) -> None:
    assert find_read_fields("args", ExpressionText.of(source)) == fields


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("turn.calls.exists(c, c.tool == 'x' && c.age > now)", {"tool", "age"}),
        ("turn.calls.size() > 1 && size(turn.calls) > 2", set()),
        ("turn.calls.filter(c, c.tool == 'x').exists(d, d.tier == 'y')", {"tool", "tier"}),
        ("turn.calls.exists(c, c == 1)", None),
        ("turn.calls[0].tool == 'x'", None),
        ("turn.calls == []", None),
        ("true", set()),
    ],
)
def test_fields_of_calls_that_are_looked_at(source: str, fields: set[str] | None) -> None:
    assert find_read_call_fields(ExpressionText.of(source)) == fields


def test_flags_that_are_asked_for_are_found() -> None:
    source = "turn.saw(\"a-b\") || turn . saw ( 'c' ) || args.turn.saw('d') || turn.saw(args.flag)"

    assert [flag for flag, _ in find_saw_flags(source)] == ["a-b", "c"]


@pytest.mark.parametrize(("start", "place"), [(0, (1, 1)), (3, (1, 4)), (4, (2, 1)), (6, (2, 3))])
def test_places_count_from_one(start: int, place: tuple[int, int]) -> None:
    assert line_and_column("abc\ndef", start) == place
