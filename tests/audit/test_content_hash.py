"""Keyed hashes of contents, and unusable keys."""

import base64
import pickle
from hmac import digest

import pytest

from gateway.audit.content_hash import ContentKey, WeakKey, load_secret

SECRET = bytes(range(160, 192))


def test_equal_contents_have_equal_hashes_of_one_kind() -> None:
    key = ContentKey(SECRET)

    assert key.arguments(b"one") == key.arguments(b"one")
    assert key.arguments(b"one") != key.arguments(b"other")
    assert key.arguments(b"one") != ContentKey(SECRET[::-1]).arguments(b"one")
    assert len({key.arguments(b"one"), key.result(b"one"), key.token("one")}) == 3


def test_hash_is_the_documented_one() -> None:
    key = ContentKey(SECRET)

    assert key.arguments(b"checksum") == digest(SECRET, b"arguments\nchecksum", "sha256").hex()
    assert key.token("jti-1") == digest(SECRET, b"token\njti-1", "sha256").hex()
    assert key.result(b"done") == digest(SECRET, b"result\ndone", "sha256").hex()
    assert key.id == digest(SECRET, b"id\n", "sha256").hex()[:16]


def test_arguments_and_results_never_have_the_same_hash() -> None:
    key = ContentKey(SECRET)

    assert key.arguments(b"{}") != key.result(b"{}")


@pytest.mark.parametrize(
    "written",
    [
        pytest.param(SECRET.hex(), id="hexadecimal"),
        pytest.param(SECRET.hex().upper() + "\n", id="with-a-newline"),
        pytest.param(base64.b64encode(SECRET).decode(), id="base64"),
        pytest.param(base64.urlsafe_b64encode(SECRET).decode().rstrip("="), id="base64-of-urls"),
        pytest.param(SECRET, id="raw"),
    ],
)
def test_one_key_may_be_written_in_several_ways(written: str | bytes) -> None:
    assert load_secret(written, "the key", least=32, help="") == SECRET


@pytest.mark.parametrize(
    ("written", "message"),
    [
        pytest.param("", "has 0 bytes, but needs at least 32", id="empty"),
        pytest.param("hunter2", "has 5 bytes, but needs at least 32", id="short"),
        pytest.param("abcde", "is a text, neither hexadecimal nor base64", id="no-base64-of-anything"),
        pytest.param(
            "correct horse battery staple, and more of it", "is a text, neither hexadecimal nor base64", id="words"
        ),
        pytest.param("00" * 32, "repeats a few bytes, so it can be guessed", id="zeros"),
        pytest.param(b"ab" * 40, "repeats a few bytes, so it can be guessed", id="repeated"),
    ],
)
def test_key_that_can_be_guessed_is_refused(written: str | bytes, message: str) -> None:
    with pytest.raises(WeakKey) as refused:
        ContentKey(written)

    assert refused.value.message == f"the content key {message}"
    assert "gateway audit keygen" in (refused.value.help or "")


def test_key_is_not_shown_or_copied() -> None:
    key = ContentKey(SECRET)

    assert SECRET.hex() not in repr(key)
    with pytest.raises(TypeError, match="cannot be copied"):
        pickle.dumps(key)


@pytest.mark.parametrize("secret", [SECRET, SECRET.hex(), b" \n" + bytes(range(32)) + b"\t"])
def test_key_is_the_same_in_a_process_of_our_own(secret: str | bytes) -> None:
    key = ContentKey(secret)
    other = ContentKey(key.export_secret())

    assert other.id == key.id
    assert other.result(b"content") == key.result(b"content")


@pytest.mark.parametrize("size", [32, 63, 64, 65, 200])
@pytest.mark.parametrize("content", [b"", b"a", bytes(range(256)) * 300])
def test_hash_is_hmac_whatever_the_length_of_the_key(size: int, content: bytes) -> None:
    secret = bytes(range(256))[:size]

    assert ContentKey(secret).result(content) == digest(secret, b"result\n" + content, "sha256").hex()
    assert ContentKey(secret).arguments(content) == digest(secret, b"arguments\n" + content, "sha256").hex()
