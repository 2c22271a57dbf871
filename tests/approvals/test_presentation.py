"""Approvers see the whole call with nothing hidden, and a digest of exactly that."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.approvals.approval_store import ApprovalRecord, ApprovalRequest, ApprovalVote
from gateway.approvals.presentation import ArgumentView, escape_invisible, excerpt, make_view
from gateway.approvals.service import present_approval, summarize_approvals
from tests.approvals.held_calls import LEA, NOON, ApprovalFixture, action, refund


def record(request: ApprovalRequest) -> ApprovalRecord:
    return ApprovalRecord("id", request, NOON, NOON + request.timeout)


def arguments(**given: Any) -> ApprovalRecord:
    return record(refund(action(arguments=given)))


def test_every_argument_is_shown_and_marked_as_the_callers() -> None:
    seen = make_view(arguments(amount=700, order="A-1"))

    assert seen.arguments == (ArgumentView("amount", "700", 0), ArgumentView("order", '"A-1"', 0))
    assert {each.origin for each in seen.arguments} == {"caller"}
    assert seen.left_out == 0


def test_rule_may_choose_what_is_shown_and_the_rest_is_counted() -> None:
    seen = make_view(record(refund(show=("amount", "currency"))))

    assert [each.name for each in seen.arguments] == ["amount"]
    assert seen.left_out == 1


def test_nothing_is_cut_off() -> None:
    [seen] = make_view(arguments(text="x" * 1_000_000)).arguments

    assert len(seen.value) == 1_000_002


def test_numbers_are_shown_in_full() -> None:
    [seen] = make_view(arguments(account=12345678901234567890123)).arguments

    assert seen.value == "12345678901234567890123"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("pay \u202eeve\u202c", r'"pay \u202eeve\u202c"', id="direction-changes"),
        pytest.param("a\u200bb\u2060c\ufeff", r'"a\u200bb\u2060c\ufeff"', id="zero-width"),
        pytest.param("\x1b[2K\x7f\x9b", r'"\u001b[2K\u007f\u009b"', id="terminal-commands"),
        pytest.param("a\r\n\tb", r'"a\r\n\tb"', id="line-ends"),
        pytest.param("\u2028\u2029\xa0\u3000", r'"\u2028\u2029\u00a0\u3000"', id="other-spaces"),
        pytest.param("\U000e0041\U000e0042", r'"\udb40\udc41\udb40\udc42"', id="tag-characters"),
        pytest.param("a\ufe0f\U000e0100", r'"a\ufe0f\udb40\udd00"', id="variation-selectors"),
        pytest.param("\u3164\u115f\u2800", r'"\u3164\u115f\u2800"', id="letters-that-are-blank"),
        pytest.param("\ue000\U0010ffff", r'"\ue000\udbff\udfff"', id="private-and-unassigned"),
        pytest.param("\ud800", r'"\ud800"', id="half-a-pair"),
        pytest.param(r"\u202e", r'"\\u202e"', id="a-forged-escape"),
        pytest.param('", "approved": true', r'"\", \"approved\": true"', id="quotes"),
        pytest.param("日本語 Grüße 🙂", '"日本語 Grüße 🙂"', id="ordinary-text-of-all-kinds"),
    ],
)
def test_characters_that_would_not_be_seen_are_escapes(text: str, value: str) -> None:
    [seen] = make_view(arguments(text=text)).arguments

    assert seen.value == value


def test_unseen_characters_are_counted_wherever_they_hide() -> None:
    [seen] = make_view(arguments(**{"na\u200bme": {"k\u202ey": ["\u2066", 1, None, "line\nend\ttab"]}})).arguments

    assert seen.name == r"na\u200bme"
    assert seen.unseen == 3


@given(st.dictionaries(st.text(max_size=5), st.text() | st.integers() | st.lists(st.text()), max_size=4))
def test_what_is_shown_is_still_the_same_value(given: dict[str, Any]) -> None:
    seen = make_view(arguments(**{f"a{n}": value for n, value in enumerate(given.values())}))

    assert [json.loads(each.value) for each in seen.arguments] == list(given.values())
    assert all(each.value.replace("\n", "").isprintable() for each in seen.arguments)


@given(st.text(), st.text())
def test_different_texts_look_different(one: str, other: str) -> None:
    assert (escape_invisible(one) == escape_invisible(other)) == (one == other)
    assert escape_invisible(one).isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"reason": "Something else"}, id="reason"),
        pytest.param({"show": ("amount",)}, id="arguments-shown"),
        pytest.param({"needed": 2}, id="how-many"),
        pytest.param({"approvers": ("role:security",)}, id="approvers"),
        pytest.param({"rule": "another"}, id="rule"),
        pytest.param({"advertised": "another"}, id="tool"),
        pytest.param({"timeout": timedelta(hours=1)}, id="expiry"),
        pytest.param({"action": action(arguments={"amount": 701, "order": "A-1"})}, id="arguments"),
    ],
)
def test_digest_is_of_everything_that_is_seen(changes: dict[str, Any]) -> None:
    assert make_view(record(replace(refund(), **changes))).digest != make_view(record(refund())).digest


def test_digest_does_not_change_with_votes() -> None:
    before = record(refund())
    after = replace(before, entries=(ApprovalVote(LEA, "grant", NOON, "digest"),))

    assert make_view(before).digest == make_view(after).digest


@pytest.mark.anyio
async def test_large_arguments_are_shown_the_same_way(desk: ApprovalFixture) -> None:
    large = arguments(text="x" * 100_000)

    assert await present_approval(large) == make_view(large)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({}, "", id="nothing"),
        pytest.param({"n": 1, "order": "A-1"}, 'n=1 order="A-1"', id="scalars"),
        pytest.param({"a": {"b": [1, "x\ny"]}}, r'a={"b": [1, "x\ny"]}', id="nested"),
        pytest.param({"to": "eve\u202e"}, r'to="eve\u202e"', id="unseen"),
        pytest.param({"a\nb\\": 1}, r"a\nb\\=1", id="name"),
        pytest.param({"text": "x" * 1000, "z": 1}, f'text="{"x" * 38}… z=1', id="long"),
    ],
)
def test_excerpt_is_the_arguments_on_one_line(given: dict[str, Any], expected: str) -> None:
    assert excerpt(arguments(**given)) == expected


def test_excerpt_is_short_and_shows_what_the_rule_shows() -> None:
    many = excerpt(arguments(**{f"n{n}": "\u202e" * 100 for n in range(100)}))

    assert (len(many), many[-1], many.isprintable()) == (120, "…", True)
    assert excerpt(record(refund(show=("amount", "currency")))) == "amount=700"


@pytest.mark.anyio
async def test_excerpts_of_large_arguments_are_the_same() -> None:
    large, small = arguments(text="x" * 100_000), arguments(n=1)

    assert await summarize_approvals([large, small]) == [excerpt(large), *(await summarize_approvals([small]))]
