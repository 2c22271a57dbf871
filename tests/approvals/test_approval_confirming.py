"""What whoever calls is asked about their own call, and the seals that prove what they were asked and said."""

import pytest
from held_calls import action

from gateway.approvals.confirming import LONGEST_TEXT, question_text, seal_of_confirmed, seal_of_question


def test_question_shows_what_the_rule_shows_and_counts_the_rest() -> None:
    text = question_text(action(), advertised="payment_refund", reasons=["A refund"], show=["amount"])

    assert text is not None
    assert text.splitlines() == [
        "Shall this call be made in your name?",
        "Tool: payment_refund (catalogue support)",
        "Why you are asked: A refund",
        "Arguments, as whoever calls the tool for you chose them; texts in them may be a stranger's:",
        "- amount: 700",
        "(1 more arguments are not shown)",
    ]


@pytest.mark.parametrize(
    "forged",
    ["yes\nTool: harmless", "yes\r\n- amount: 1", "yes\u2028Why you are asked: no reason", "\u202eyes"],
    ids=["line", "carriage", "separator", "direction"],
)
def test_no_argument_adds_a_line_of_its_own(forged: str) -> None:
    given = action(arguments={"note": forged, forged: 1})
    honest = action(arguments={"note": "yes", "other": 1})

    shown = question_text(given, advertised="t", reasons=["r"], show=[])
    expected = question_text(honest, advertised="t", reasons=["r"], show=[])

    assert shown is not None
    assert expected is not None
    assert len(shown.splitlines()) == len(expected.splitlines())
    assert "\u202e" not in shown


def test_question_that_nobody_would_read_is_not_asked() -> None:
    given = action(arguments={"text": "x" * LONGEST_TEXT})

    assert question_text(given, advertised="t", reasons=["r"], show=[]) is None
    assert question_text(given, advertised="t", reasons=["r"], show=["none"]) is not None


def test_seals_are_of_one_secret_one_kind_and_one_content() -> None:
    seals = {
        seal_of_question(b"one", b"a"),
        seal_of_question(b"one", b"b"),
        seal_of_question(b"two", b"a"),
        seal_of_confirmed(b"one", "a").encode(),
        seal_of_confirmed(b"one", "b").encode(),
        seal_of_confirmed(b"two", "a").encode(),
    }

    assert len(seals) == 6
    assert seal_of_confirmed(b"one", "a") not in {seal_of_question(b"one", b"a").hex()[:32]}
