"""Long lines of documents are found; tables, code and single words may be longer."""

import pytest

from tests.documents.line_lengths import LIMIT, find_long_lines

LONG = "word " * (LIMIT // 5 + 1)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(f"short\n{LONG}\n", [2], id="prose"),
        pytest.param(f"- {LONG}", [1], id="item"),
        pytest.param(f"| {LONG} |", [], id="table"),
        pytest.param(f"```\n{LONG}\n```\n{LONG}", [4], id="code"),
        pytest.param("  " + "x" * (LIMIT + 1), [], id="word"),
    ],
)
def test_long_lines_are_found(text: str, lines: list[int]) -> None:
    assert list(find_long_lines(text)) == lines
