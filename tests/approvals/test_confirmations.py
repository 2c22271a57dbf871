"""Callers confirm their own calls, and seals prove what they were asked and what they answered."""

import pytest

from gateway.approvals.presentation import LONGEST_TEXT, format_question
from gateway.engine.held_calls import sign_confirmation
from gateway.server.mcp.suspended_calls import sign_question
from tests.approvals.held_calls import action


def test_question_shows_what_the_rule_shows_and_counts_the_rest() -> None:
    text = format_question(action(), advertised="payment_refund", reasons=["A refund"], show=["amount"])

    assert text is not None
    assert text.splitlines() == [
        "Shall this call be made in your name?",
        "Tool: payment_refund (catalogue support)",
        "Why you are asked: A refund",
        "Arguments, as chosen by the program that calls for you; texts in them may come from strangers:",
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

    shown = format_question(given, advertised="t", reasons=["r"], show=[])
    expected = format_question(honest, advertised="t", reasons=["r"], show=[])

    assert shown is not None
    assert expected is not None
    assert len(shown.splitlines()) == len(expected.splitlines())
    assert "\u202e" not in shown


def test_unreadably_long_question_is_not_asked() -> None:
    given = action(arguments={"text": "x" * LONGEST_TEXT})

    assert format_question(given, advertised="t", reasons=["r"], show=[]) is None
    assert format_question(given, advertised="t", reasons=["r"], show=["none"]) is not None


def test_seals_are_of_one_secret_one_kind_and_one_content() -> None:
    seals = {
        sign_question(b"one", b"a"),
        sign_question(b"one", b"b"),
        sign_question(b"two", b"a"),
        sign_confirmation(b"one", "a").encode(),
        sign_confirmation(b"one", "b").encode(),
        sign_confirmation(b"two", "a").encode(),
    }

    assert len(seals) == 6
    assert sign_confirmation(b"one", "a") not in {sign_question(b"one", b"a").hex()[:32]}
