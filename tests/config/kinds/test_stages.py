"""Options of the built-in stages: their defaults and their allowed values."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config.field_introspection import ListField, ScalarField, list_fields
from gateway.config.kinds.pipelines import STAGE_OPTIONS, parse_stage_options
from gateway.registries.pipeline_stages import BUILT_IN_STAGES

MINUTE = timedelta(minutes=1)


def test_every_built_in_stage_has_a_model() -> None:
    assert list(STAGE_OPTIONS) == list(BUILT_IN_STAGES)


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("select-tools", {}, {}),
        ("loop-guard", {}, {"same_call": 3}),
        ("gates", {}, {}),
        ("cache", {"for": "1m"}, {"for_": MINUTE, "by": ("subject", "arguments")}),
        (
            "cache",
            {"for": "1m", "by": ["tenant", "catalogue", "arguments"]},
            {"for_": MINUTE, "by": ("tenant", "catalogue", "arguments")},
        ),
        ("idempotency", {}, {"header": "idempotency-key", "keep": 10 * MINUTE}),
        ("timeout", {"after": "1m"}, {"after": MINUTE}),
        (
            "retry",
            {},
            {"attempts": 2, "causes": ("unavailable",), "unless_flags": (), "delay": timedelta(milliseconds=200)},
        ),
        (
            "retry",
            {"attempts": 10, "causes": ["failed", "conflict"], "unlessFlags": ["writes"], "delay": "1m"},
            {"attempts": 10, "causes": ("failed", "conflict"), "unless_flags": ("writes",), "delay": MINUTE},
        ),
        ("circuit-breaker", {}, {"open_after": 5, "within": MINUTE / 2, "probe_after": MINUTE / 4}),
        ("concurrency", {"limit": 1}, {"limit": 1}),
        ("inline-small-results", {}, {"below": None}),
        ("inline-small-results", {"below": "4KiB"}, {"below": 4096}),
        ("redact", {}, {}),
        ("audit-summary", {}, {}),
    ],
)
def test_options_are_read(name: str, given: dict[str, Any], meant: dict[str, Any]) -> None:
    options = parse_stage_options(name, given)

    assert type(options) is STAGE_OPTIONS[name]
    assert options.model_dump() == meant


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("loop-guard", {"sameCall": 0}),
        ("loop-guard", {"same_call": 2}),
        ("cache", {}),
        ("idempotency", {"header": "Authorization"}),
        ("idempotency", {"header": "cookie"}),
        ("idempotency", {"header": "Host"}),
        ("idempotency", {"header": "a b"}),
        ("timeout", {}),
        ("timeout", {"after": "0s"}),
        ("retry", {"attempts": 0}),
        ("retry", {"causes": []}),
        ("retry", {"causes": ["timeout"]}),
        ("circuit-breaker", {"openAfter": 0}),
        ("concurrency", {}),
        ("inline-small-results", {"below": None}),
        ("inline-small-results", {"below": 4096}),
        ("redact", {"paths": []}),
    ],
)
def test_options_are_refused(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        parse_stage_options(name, given)


def test_unknown_stage_has_no_options() -> None:
    with pytest.raises(KeyError):
        parse_stage_options("compress", {})


def test_no_option_is_a_word_that_other_readers_take_for_a_boolean() -> None:
    words: set[str] = set()
    for model in STAGE_OPTIONS.values():
        for name, part in list_fields(model).items():
            words.add(name)
            item = part.shape.item if isinstance(part.shape, ListField) else part.shape
            words.update(item.choices if isinstance(item, ScalarField) else ())

    assert "causes" in words
    assert words.isdisjoint({"on", "off", "yes", "no", "y", "n"})
