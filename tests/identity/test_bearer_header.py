"""The Authorization header: one bearer credential, and no header that could be read as two."""

import pytest

from gateway.errors import Unauthenticated
from gateway.identity.authenticator import Authenticator
from gateway.identity.credentials import MAX_CREDENTIAL, parse_bearer_header
from gateway.identity.provider_settings import AnonymousProvider
from tests.identity.token_samples import FakeClock

pytestmark = pytest.mark.anyio

MALFORMED = {
    "empty": b"",
    "a space": b" ",
    "scheme only": b"Bearer",
    "scheme and a space": b"Bearer ",
    "credential only": b"abc",
    "basic": b"Basic YTpi",
    "digest": b'Digest username="ada"',
    "two credentials": b"Bearer abc, Bearer def",
    "two words": b"Bearer abc def",
    "comma": b"Bearer abc,def",
    "parameters": b'Bearer token="abc"',
    "scheme twice": b"Bearer Bearer abc",
    "tab": b"Bearer\tabc",
    "space in front": b" Bearer abc",
    "space behind": b"Bearer abc ",
    "line break": b"Bearer abc\n",
    "header injection": b"Bearer abc\r\nX-User: root",
    "null byte": b"Bearer abc\0",
    "not ASCII": "Bearer äbc".encode(),
    "full-width": "Bearer ａｂｃ".encode(),
    "padding inside": b"Bearer ab=c",
    "padding only": b"Bearer ==",
    "quotes": b'Bearer "abc"',
    "other scheme that starts alike": b"BearerX abc",
    "oversize": b"Bearer " + b"a" * (MAX_CREDENTIAL + 1),
    "oversize spaces": b"Bearer" + b" " * MAX_CREDENTIAL + b"a",
}


@pytest.mark.parametrize("header", MALFORMED.values(), ids=MALFORMED)
async def test_header_that_is_not_one_bearer_credential_is_an_invalid_request(header: bytes) -> None:
    identities = Authenticator([AnonymousProvider("user:local")], FakeClock())

    with pytest.raises(Unauthenticated) as refusal:
        await identities.authenticate(header)

    assert (refusal.value.error, refusal.value.reason) == ("invalid_request", "authorization-header")
    assert refusal.value.status == 401


@pytest.mark.parametrize(
    ("header", "credential"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer abc", b"abc"),
        (b"BEARER   abc", b"abc"),
        (b"Bearer aA0-._~+/==", b"aA0-._~+/=="),
        (b"Bearer " + b"a" * MAX_CREDENTIAL, b"a" * MAX_CREDENTIAL),
    ],
    ids=["usual", "small letters", "capitals and spaces", "every character", "longest"],
)
async def test_one_bearer_credential_is_found(header: bytes, credential: bytes) -> None:
    assert parse_bearer_header(header) == credential
