"""The one table of characters that a screen does not draw or would obey."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.primitives.visible_text import escape_invisible, is_unseen, split_unseen

HIDDEN = "\u200b\u200e\u202e\u2066\ufeff\u00ad\u3164\u2800\ufe0f\U000e0041\x1b\x00\x7f\x9b\u2028"


@pytest.mark.parametrize("character", HIDDEN)
def test_hidden_character_is_shown_by_its_number(character: str) -> None:
    pieces = list(split_unseen(f"a{character}b"))

    assert [piece.text for piece in pieces] == ["a", f"U+{ord(character):04X}", "b"]
    assert [piece.is_name for piece in pieces] == [False, True, False]


@pytest.mark.parametrize("text", ["", "plain", "Zürich 日本語 עברית ไทย", "e\u0301", "שָׁלוֹם"])
def test_text_of_any_script_stays_as_it_is(text: str) -> None:
    assert "".join(piece.text for piece in split_unseen(text)) == text
    assert escape_invisible(text) == text


def test_marks_that_would_cover_other_lines_are_shown_by_their_numbers() -> None:
    pieces = list(split_unseen("a" + "\u0301" * 5 + "b"))

    assert [piece.text for piece in pieces] == ["a\u0301\u0301\u0301", "U+0301", "U+0301", "b"]


def test_terminal_shows_control_characters_as_pictures_and_others_by_number() -> None:
    assert escape_invisible("a\x1b[31m\tb\u200bc\u3164") == "a␛[31m    b<U+200B>c<U+3164>"


@given(st.text())
def test_no_shown_text_has_a_hidden_character(text: str) -> None:
    pieces = list(split_unseen(text))

    assert not any(is_unseen(character) for piece in pieces for character in piece.text)
    assert not any(is_unseen(character) for character in escape_invisible(text))
    drawn = [each for piece in pieces if not piece.is_name for each in piece.text]
    assert all(unicodedata.category(each) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for each in drawn)
