"""The Authorization header: exactly one bearer credential, or none that anybody looks at."""

import re
from typing import Final

from gateway.errors import Unauthenticated

MAX_CREDENTIAL: Final = 16 * 1024

# RFC 6750, section 2.1: one scheme, one b64token. A comma or a second word is a second credential.
_BEARER: Final = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] {1,8}([A-Za-z0-9._~+/-]+=*)")
_LONGEST: Final = MAX_CREDENTIAL + len("Bearer ")


def refuse_oversize(authorization: bytes) -> None:
    """Raises `Unauthenticated` for a header that is not worth looking at."""
    if len(authorization) > _LONGEST:
        raise _malformed()


def bearer_credential(authorization: bytes) -> bytes:
    """The credential of the header's value. Raises `Unauthenticated` for whatever else it holds."""
    found = _BEARER.fullmatch(authorization)
    if found is None:
        raise _malformed()
    return found[1]


def _malformed() -> Unauthenticated:
    return Unauthenticated("invalid_request", reason="authorization-header")
