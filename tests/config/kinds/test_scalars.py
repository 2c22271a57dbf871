"""Scalars: accepted values, refused values, and the messages."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any, get_args

import pytest
from pydantic_core import PydanticCustomError

from gateway.config.kinds import scalars
from gateway.config.kinds.catalogues import PrefixPolicy, PublishPath
from gateway.config.kinds.identity_providers import SubjectPrefix
from gateway.config.kinds.scalars import TextScalar
from gateway.config.kinds.tools import Argument, FileName, HttpStatusScalar, MimeType
from gateway.config.kinds.validation import CODES
from gateway.model.primitives.name_patterns import OBJECT_KINDS, SUBJECT_KINDS
from gateway.policy.casbin.policy_index import is_object, is_subject


def text(annotation: Any) -> TextScalar:
    return next(note for note in get_args(annotation) if isinstance(note, TextScalar))


READ = [
    (scalars.Duration, "10s", timedelta(seconds=10)),
    (scalars.Duration, "5m", timedelta(minutes=5)),
    (scalars.Duration, "2h", timedelta(hours=2)),
    (scalars.Duration, "1d", timedelta(days=1)),
    (scalars.Duration, "500ms", timedelta(milliseconds=500)),
    (scalars.Duration, "999999999d", timedelta(days=999_999_999)),
    (scalars.Size, "7B", 7),
    (scalars.Size, "256KiB", 256 * 1024),
    (scalars.Size, "1MiB", 1 << 20),
    (scalars.Size, "10MB", 10_000_000),
    (scalars.Size, "2GiB", 2 << 30),
    (scalars.Day, "2026-11-16", date(2026, 11, 16)),
    (scalars.Timestamp, "2026-11-16T10:00:00Z", datetime(2026, 11, 16, 10, tzinfo=UTC)),
    (scalars.TimeOfDay, "08:00", time(8)),
    (scalars.ClosingTimeOfDay, "18:00", time(18)),
    (scalars.ClosingTimeOfDay, "24:00", time.max),
    (scalars.TimeZone, "Europe/Berlin", "Europe/Berlin"),
    (scalars.VersionText, "1.0.0-rc.1+build.5", "1.0.0-rc.1+build.5"),
    (scalars.Name, "a.b_c-D9", "a.b_c-D9"),
    (scalars.Name, "x" * 128, "x" * 128),
    (scalars.NamePattern, "list_*", "list_*"),
    (scalars.NamePattern, "*_a*b", "*_a*b"),
    (scalars.NamePattern, "*" + "x" * 127, "*" + "x" * 127),
    (scalars.UrlText, "https://example.com:8443/a?b=c", "https://example.com:8443/a?b=c"),
    (scalars.UrlText, "http://[::1]:4318", "http://[::1]:4318"),
    (scalars.UrlTemplateText, "https://example.com/a/{id}?x=1", "https://example.com/a/{id}?x=1"),
    (scalars.AbsolutePath, "/srv/repos", "/srv/repos"),
    (scalars.EntryPoint, "acme_tools.pricing:quote", "acme_tools.pricing:quote"),
    (scalars.Subject, "agent:release-bot", "agent:release-bot"),
    (scalars.Role, "role:sre", "role:sre"),
    (scalars.PrincipalName, "user:ana@example.com", "user:ana@example.com"),
    (scalars.PrincipalName, "user:auth0|5f7c8ec7", "user:auth0|5f7c8ec7"),
    (scalars.PrincipalName, "service:spiffe://acme/billing~1", "service:spiffe://acme/billing~1"),
    (scalars.Subject, "user:" + "x" * 256, "user:" + "x" * 256),
    (scalars.PolicyObject, "class:payment", "class:payment"),
    (scalars.PolicyObject, "prompt:review_*", "prompt:review_*"),
    (scalars.PolicyObject, "resource:*", "resource:*"),
    (scalars.PolicyObject, "config", "config"),
    (scalars.JsonPathText, "$.address.*", "$.address.*"),
    (HttpStatusScalar, 404, 404),
    (HttpStatusScalar, "404", 404),
    (PrefixPolicy, "{upstream}_", "{upstream}_"),
    (PublishPath, "/engineering", "/engineering"),
    (SubjectPrefix, "user:", "user:"),
    (MimeType, "image/svg+xml", "image/svg+xml"),
    (Argument, "", ""),
]

REFUSED = [
    (
        scalars.Duration,
        "bad-duration",
        ["10 seconds", "0s", "-5s", "5", "1.5h", "1w", "", "9999999999d", "٣s", "10s\n"],
    ),
    (scalars.Size, "bad-size", ["1 MiB", "0B", "1mib", "10", "-1KiB", "1.5MiB", ""]),
    (scalars.Day, "bad-date", ["2026-02-30", "16.11.2026", "20261116", "2026-W01-1", ""]),
    (scalars.Timestamp, "bad-date", ["2026-11-16T10:00:00", "2026-11-16", "2026-11-16T25:00:00Z", "now"]),
    (scalars.TimeOfDay, "bad-time", ["8:00", "24:00", "08:60", "08:00:00"]),
    (scalars.ClosingTimeOfDay, "bad-time", ["24:01", "25:00", "8:00"]),
    (scalars.TimeZone, "wrong-value", ["Europe/Berln", "../etc/passwd", "/etc/passwd", "", "Europe"]),
    (scalars.VersionText, "bad-version", ["1.0", "v1.0.0", "1.0.0.0", "01.0.0", ""]),
    (scalars.Name, "bad-name", ["", "x" * 129, "a b", "é", "a/b", "a\n", "*"]),
    (scalars.NamePattern, "bad-name", ["", "a/b", "[ab]", "a*\n", "a?", "a**", "**", "*" + "x" * 128]),
    (
        scalars.UrlText,
        "bad-url",
        [
            "example.com",
            "ftp://example.com",
            "https://",
            "https:///path",
            "https://user:pw@example.com",
            "https://user@example.com",
            "https://example.com:0/",
            "https://example.com:99999/",
            "https://example.com/#x",
            "https://exa mple.com",
            "https://example.com/{id}",
            "https://example.com\\@evil.example",
            "https://[::1",
            "https://:443",
            "javascript:alert(1)",
        ],
    ),
    (scalars.UrlTemplateText, "bad-url", ["https://{host}/a", "https://example.com/?q={id}", "https://a@b/{id}"]),
    (scalars.AbsolutePath, "bad-path", ["srv", "/srv/../etc", "", "/a\x00b"]),
    (scalars.EntryPoint, "bad-entrypoint", ["acme", "acme.tools", ":x", "a:", "a-b:c", "a:b.c", "a..b:c"]),
    (
        scalars.Subject,
        "bad-name",
        ["ana", "role:admin", "user:", "user:a b", "user:a,b", "user:*", "user:" + "x" * 257],
    ),
    (scalars.Role, "bad-name", ["engineer", "user:ana", "role:"]),
    (scalars.PolicyObject, "bad-name", ["payment", "tool:", "config:x", "tool:a?", "tool:**", "config*", "*"]),
    (scalars.Prose, "wrong-value", ["", " \n\t"]),
    (scalars.HeaderValue, "wrong-value", ["a\r\nb: c", "é"]),
    (scalars.JsonPathText, "bad-path", ["ticket", ""]),
    (HttpStatusScalar, "wrong-value", ["200", "4o4"]),
    (PublishPath, "bad-path", ["engineering", "/", "//x", "/a b", "/..", "/a/", "/a/../b"]),
    (SubjectPrefix, "bad-name", ["role:", "user", ""]),
    (FileName, "wrong-value", ["a/b", "..\\x", ""]),
    (MimeType, "wrong-value", ["png", "image/", "image/p ng"]),
]


@pytest.mark.parametrize(("kind", "written", "meant"), READ, ids=lambda value: repr(value)[:40])
def test_scalar_is_read(kind: Any, written: object, meant: object) -> None:
    assert text(kind).read(written) == meant


@pytest.mark.parametrize(
    ("kind", "code", "written"),
    [(kind, code, written) for kind, code, values in REFUSED for written in values],
    ids=lambda value: repr(value)[:40],
)
def test_scalar_is_refused_with_its_code(kind: Any, code: str, written: str) -> None:
    scalar = text(kind)

    with pytest.raises(PydanticCustomError) as refusal:
        scalar.read(written)

    assert refusal.value.type == code
    assert code in CODES
    assert refusal.value.message() == scalar.wanted


@pytest.mark.parametrize("subject", [f"{kind}:a@b|c/d:e~f+g=h" for kind in SUBJECT_KINDS])
def test_documents_and_policies_agree_on_subjects(subject: str) -> None:
    assert is_subject(subject)
    assert text(scalars.PrincipalName).read(subject) == subject


def test_callers_of_an_identity_provider_are_the_subjects_that_are_no_role() -> None:
    kinds = [kind for kind in SUBJECT_KINDS if kind != "role"]

    assert [text(SubjectPrefix).read(f"{kind}:") for kind in kinds] == [f"{kind}:" for kind in kinds]
    assert [text(scalars.Subject).read(f"{kind}:a") for kind in kinds] == [f"{kind}:a" for kind in kinds]


@pytest.mark.parametrize("kind", OBJECT_KINDS)
def test_documents_and_policies_agree_on_objects(kind: str) -> None:
    assert is_object(f"{kind}:a.b_c-d")
    assert text(scalars.PolicyObject).read(f"{kind}:a.b_c-d") == f"{kind}:a.b_c-d"


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (10, "a number"),
        (1.5, "a number"),
        (True, "true or false"),
        (None, "nothing"),
        (["10s"], "a list"),
        ({"a": 1}, "a mapping"),
        (b"10s", "something else"),
        (10**6000, "a number"),
    ],
    ids=["int", "float", "bool", "null", "list", "mapping", "bytes", "huge"],
)
def test_wrong_type_is_named_without_its_value(value: object, got: str) -> None:
    with pytest.raises(PydanticCustomError) as refusal:
        text(scalars.Duration).read(value)

    assert refusal.value.type == "wrong-type"
    assert refusal.value.message() == f"expected a duration, got {got}"


@pytest.mark.parametrize("value", [True, 10**6000, -404, 40.4], ids=["bool", "huge", "negative", "float"])
def test_status_is_a_small_whole_number(value: object) -> None:
    with pytest.raises(PydanticCustomError, match="expected an HTTP status"):
        text(HttpStatusScalar).read(value)


def test_hostile_text_is_refused_in_linear_time() -> None:
    for kind, _, _ in REFUSED:
        with pytest.raises(PydanticCustomError):
            text(kind).read(" " * 500_000 + "\x00" if kind is not scalars.Prose else " " * 500_000)
