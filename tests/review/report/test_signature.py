"""A report is what was signed, or it is refused with the reason."""

import json
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audit.signing_keys import SigningKey, VerifyKey
from gateway.review.report.signature import (
    MOST_SIGNATURE,
    InvalidReport,
    read_signature,
    sign_report,
    verify_report,
)

FILES = {
    "review.html": b"<!doctype html>",
    "review.json": b'{"revision": {"revision": "abc"}}',
    "review.oscal.json": b"{}",
}


@cache
def signing_key() -> SigningKey:
    return SigningKey.generate()


def signature() -> bytes:
    return sign_report(FILES, revision="abc", key=signing_key())


def refusal(files: dict[str, bytes], content: bytes, *keys: VerifyKey) -> str:
    with pytest.raises(InvalidReport) as refused:
        verify_report(read_signature(content), files, keys or [signing_key().public])
    return refused.value.message


def test_untouched_report_is_what_was_signed() -> None:
    verify_report(read_signature(signature()), FILES, [SigningKey.generate().public, signing_key().public])


@pytest.mark.parametrize("name", FILES)
def test_changed_file_is_refused(name: str) -> None:
    changed = {**FILES, name: FILES[name] + b" "}

    assert refusal(changed, signature()) == f"'{name}' is not the file that was signed"


@pytest.mark.parametrize("name", FILES)
def test_cut_off_file_is_refused(name: str) -> None:
    assert refusal({**FILES, name: FILES[name][:-1]}, signature()) == f"'{name}' is not the file that was signed"


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_refused(name: str) -> None:
    others = {each: content for each, content in FILES.items() if each != name}

    assert refusal(others, signature()) == f"'{name}' is missing"


def test_swapped_files_are_refused() -> None:
    swapped = {**FILES, "review.html": FILES["review.json"], "review.json": FILES["review.html"]}

    assert refusal(swapped, signature()) == "'review.html' is not the file that was signed"


def test_signature_of_another_report_is_refused() -> None:
    other = sign_report({**FILES, "review.html": b"other"}, revision="abc", key=signing_key())

    assert refusal(FILES, other) == "'review.html' is not the file that was signed"


def test_data_of_another_revision_is_refused() -> None:
    other = sign_report(FILES, revision="def", key=signing_key())

    assert refusal(FILES, other) == "the data is of another revision than the signature"


def test_data_that_is_no_report_is_refused() -> None:
    files = {**FILES, "review.json": b"[]"}

    assert refusal(files, sign_report(files, revision="abc", key=signing_key())) == (
        "the data is of another revision than the signature"
    )


def test_unknown_key_is_refused() -> None:
    assert refusal(FILES, signature(), SigningKey.generate().public).startswith("the report is signed with the unknown")


def test_key_that_did_not_sign_is_refused_under_a_stolen_name() -> None:
    other = SigningKey.generate()
    found = replace(read_signature(signature()), key=other.id)

    with pytest.raises(InvalidReport, match="the signature is not valid"):
        verify_report(found, FILES, [other.public])


def test_signature_for_another_purpose_is_refused() -> None:
    found = read_signature(signature())
    anchor = signing_key().sign(found.signed_bytes, purpose="anchor")

    with pytest.raises(InvalidReport, match="the signature is not valid"):
        verify_report(replace(found, signature=anchor), FILES, [signing_key().public])


def test_changed_signature_file_is_refused_wherever_it_is_changed() -> None:
    data = json.loads(signature())
    changes = [
        {**data, "revision": "abd"},
        {**data, "files": {**data["files"], "review.html": "0" * 64}},
        {**data, "signature": data["signature"][::-1]},
    ]

    for each in changes:
        assert refusal(FILES, json.dumps(each).encode()) in (
            "the signature is not valid",
            "the signature file cannot be read",
        )


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"review.html": "0" * 64},
        {"../review.html": "0" * 64, "../review.json": "0" * 64, "../review.oscal.json": "0" * 64},
        {"a.html": "0" * 64, "b.json": "0" * 64, "a.oscal.json": "0" * 64},
        {".html": "0" * 64, ".json": "0" * 64, ".oscal.json": "0" * 64},
        {"review.html": "0", "review.json": "0" * 64, "review.oscal.json": "0" * 64},
        {"review.html": 1, "review.json": "0" * 64, "review.oscal.json": "0" * 64},
        [],
    ],
)
def test_list_of_other_files_is_refused(files: object) -> None:
    data = {**json.loads(signature()), "files": files}

    with pytest.raises(InvalidReport, match="the signature file cannot be read"):
        read_signature(json.dumps(data).encode())


def test_large_signature_file_is_refused_unread() -> None:
    with pytest.raises(InvalidReport, match="the signature file is too large"):
        read_signature(b" " * (MOST_SIGNATURE + 1))


@pytest.mark.parametrize("field", ["format", "revision", "files", "key", "signature"])
@pytest.mark.parametrize("value", [None, 1, "", "\u202e", [], "x" * 300])
def test_field_of_another_shape_is_refused(field: str, value: object) -> None:
    data = {**json.loads(signature()), field: value}

    assert refusal(FILES, json.dumps(data).encode())


@given(st.binary(max_size=300))
def test_bytes_of_a_stranger_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidReport):
        read_signature(content)
