"""Tokenizable, a text that can count its tokens, and the estimators behind it.

Exact counts need vocabulary files. They are never downloaded: the OpenAI encodings are loaded
by tiktoken only where `TIKTOKEN_CACHE_DIR` names a prepared folder. An encoding that cannot be
loaded degrades to a character heuristic inside a run (with a warning) and raises outside one.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from hashlib import sha1, sha256
from math import ceil
from pathlib import Path
from typing import Any, Final, Protocol

from gateway.errors import TokenEstimateUnavailable, TokenEstimatorShadowsBuiltin, TokenizableEvaluatorInvalid
from gateway.model.turns.events import TurnEvent, WarningEvent, now

Estimator = Callable[[str], int]
Evaluator = Callable[[Any], str]

TIKTOKEN_ENCODINGS: Final = ("gpt2", "r50k_base", "p50k_base", "p50k_edit", "cl100k_base", "o200k_base")
UNSHIPPED_ENCODINGS: Final = ("gemini", "gemma", "llama2")
BUILTIN_ENCODINGS: Final = (*TIKTOKEN_ENCODINGS, *UNSHIPPED_ENCODINGS, "claude")

_CHARS_PER_TOKEN: Final = 3.5
_VOCABULARY_HOST: Final = "https://openaipublic.blob.core.windows.net"
_R50K: Final = ("encodings/r50k_base.tiktoken", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930")
_P50K: Final = ("encodings/p50k_base.tiktoken", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069")
_CL100K: Final = ("encodings/cl100k_base.tiktoken", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7")
_O200K: Final = ("encodings/o200k_base.tiktoken", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d")
_GPT2: Final = (
    ("gpt-2/encodings/main/vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
    ("gpt-2/encodings/main/encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
)
_VOCABULARIES: Final = {
    "gpt2": _GPT2,
    "r50k_base": (_R50K,),
    "p50k_base": (_P50K,),
    "p50k_edit": (_P50K,),
    "cl100k_base": (_CL100K,),
    "o200k_base": (_O200K,),
}


class TokenRun(Protocol):
    """The part of a context that receives warnings about degraded estimates."""

    def emit(self, event: TurnEvent) -> None: ...


_current_run: ContextVar[TokenRun | None] = ContextVar("current_run", default=None)


@contextmanager
def warn_into(run: TokenRun) -> Iterator[None]:
    """Report degraded estimates inside the block to `run`, including those made without a `run` argument."""
    token = _current_run.set(run)
    try:
        yield
    finally:
        _current_run.reset(token)


class TokenEstimators:
    """Token estimators by encoding name: the built-in ones, and custom ones under new names."""

    def __init__(self) -> None:
        self._custom: dict[str, Estimator] = {}

    def register(self, name: str, estimator: Estimator) -> None:
        if not isinstance(name, str) or not name or not callable(estimator):
            raise TypeError("an estimator must be a function of a text with a non-empty name")
        if name in BUILTIN_ENCODINGS:
            raise TokenEstimatorShadowsBuiltin(f"{name!r} is a built-in encoding", help="choose a new name")
        self._custom[name] = estimator

    def names(self) -> list[str]:
        return [*BUILTIN_ENCODINGS, *self._custom]

    def estimate(self, text: str, encoding: str, run: TokenRun | None = None) -> int:
        """Return the tokens of `text`. Without a count: estimates and warns inside a run, raises outside of one."""
        try:
            return self.count(text, encoding)
        except TokenEstimateUnavailable as error:
            return self.fall_back(text, error, run)

    def count(self, text: str, encoding: str) -> int:
        """Return the exact tokens of `text`. Raises `TokenEstimateUnavailable`."""
        estimator = self._estimator(encoding)
        try:
            count = estimator(text)
        except Exception as error:  # whatever a custom estimator raises, there is no count
            raise TokenEstimateUnavailable(f"the estimator of encoding {encoding!r} failed") from error
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise TokenEstimateUnavailable(f"the estimator of encoding {encoding!r} returned no count")
        return count

    def fall_back(self, text: str, error: TokenEstimateUnavailable, run: TokenRun | None = None) -> int:
        """Return an estimate by characters and emit a warning; raise `error` outside of a run."""
        run = run or _current_run.get()
        if run is None:
            raise error
        run.emit(WarningEvent(now(), "tokens", "token-estimation-degraded", error.message, error))
        return estimate_by_characters(text)

    def _estimator(self, encoding: str) -> Estimator:
        if encoding in self._custom:
            return self._custom[encoding]
        if encoding == "claude":
            return estimate_by_characters
        if encoding in TIKTOKEN_ENCODINGS:
            return _tiktoken_estimator(encoding, os.environ.get("TIKTOKEN_CACHE_DIR", ""))
        known = ", ".join(self.names())
        raise TokenEstimateUnavailable(f"no vocabulary for encoding {encoding!r}", help=f"known encodings: {known}")


ESTIMATORS: Final = TokenEstimators()


def estimate_by_characters(text: str) -> int:
    """Estimate tokens without a vocabulary, from UTF-16 units as JavaScript counts them."""
    return ceil(len(text.encode("utf-16-le", "surrogatepass")) // 2 / _CHARS_PER_TOKEN)


class Tokenizable:
    """A mutable string with a token counter. The value may be a function, resolved by `render(ctx)`."""

    __slots__ = ("_counts", "_value")

    def __init__(self, value: str | Evaluator) -> None:
        self.set(value)

    def set(self, value: str | Evaluator) -> None:
        """Replace the value and clear the cached counts."""
        if not isinstance(value, str) and not callable(value):
            raise TypeError(f"a Tokenizable must hold a text or a function, not {type(value).__name__}")
        self._value = value
        self._counts: dict[str, int] = {}

    @property
    def is_dynamic(self) -> bool:
        return not isinstance(self._value, str)

    def render(self, ctx: Any = None) -> str:
        """Return the text; a dynamic value is evaluated for `ctx`."""
        if isinstance(self._value, str):
            return self._value
        try:
            text = self._value(ctx)
        except Exception as error:
            raise TokenizableEvaluatorInvalid("the evaluator of a dynamic text raised") from error
        if not isinstance(text, str):
            raise TokenizableEvaluatorInvalid(f"the evaluator returned {type(text).__name__}, not a string")
        return text

    def to_json(self) -> str:
        return self.render()

    def estimate_tokens(self: "Tokenizable | str", encoding: str, run: TokenRun | None = None) -> int:
        """Return the tokens of the text. Counts are cached per encoding, except for dynamic texts and estimates.

        `Tokenizable.estimate_tokens(text, encoding)` counts a bare text.
        """
        if isinstance(self, str):
            return ESTIMATORS.estimate(self, encoding, run)
        if not isinstance(self._value, str):
            return ESTIMATORS.estimate(self.render(run), encoding, run)
        if encoding not in self._counts:
            try:
                self._counts[encoding] = ESTIMATORS.count(self._value, encoding)
            except TokenEstimateUnavailable as error:
                return ESTIMATORS.fall_back(self._value, error, run)
        return self._counts[encoding]

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        shown = repr(self._value) if isinstance(self._value, str) else "<dynamic>"
        return f"Tokenizable({shown})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizable) and self._value == other._value

    __hash__ = None  # type: ignore[assignment]  # mutable


@lru_cache(maxsize=len(TIKTOKEN_ENCODINGS))
def _tiktoken_estimator(encoding: str, folder: str) -> Estimator:
    _require_vocabularies(encoding, folder)
    try:
        import tiktoken
    except ImportError as error:
        raise TokenEstimateUnavailable("tiktoken is not installed", help="install agent-gateway[tokens]") from error
    loaded = tiktoken.get_encoding(encoding)
    return lambda text: len(loaded.encode(text, disallowed_special=()))


def _require_vocabularies(encoding: str, folder: str) -> None:
    """Raise `TokenEstimateUnavailable` if a vocabulary file is missing or damaged: tiktoken would download it."""
    for address, digest in _VOCABULARIES[encoding]:
        file = Path(folder) / sha1(f"{_VOCABULARY_HOST}/{address}".encode(), usedforsecurity=False).hexdigest()
        if not folder or not _is_intact(file, digest):
            raise TokenEstimateUnavailable(
                f"no vocabulary for encoding {encoding!r}",
                help=f"set TIKTOKEN_CACHE_DIR to a folder that holds {file.name}",
            )


def _is_intact(file: Path, digest: str) -> bool:
    try:
        return sha256(file.read_bytes()).hexdigest() == digest
    except OSError:
        return False
