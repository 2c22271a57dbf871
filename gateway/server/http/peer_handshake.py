"""Handshake by which processes of one deployment prove to each other that they know the same secret, before any HTTP.

    client  MAGIC, kind, 32 random bytes
    server  32 random bytes, HMAC(key, "server", everything before)
    client  HMAC(key, "client", everything before)

The key is derived from the secret for one kind of connection to one named process, so a proof is valid for no other.
The client verifies the server first, because it then sends credentials of callers. Nothing is encrypted.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from secrets import token_bytes
from typing import Final, Literal, get_args

Kind = Literal["forward", "control"]
"""`forward` carries requests of callers, `control` requests between workers of one host."""

MIN_SECRET_BYTES: Final = 32
"""Minimum length of a secret, in bytes."""
PROOF_SECONDS: Final = 5.0
"""Seconds that a server waits for a proof. A client waits twice as long: a busy process answers late."""

MAGIC: Final = b"agwp\x01"
_KINDS: Final[Mapping[int, Kind]] = dict(enumerate(get_args(Kind), start=1))
_BYTES: Final[Mapping[Kind, bytes]] = {kind: bytes([number]) for number, kind in _KINDS.items()}
_NONCE: Final = 32
_PROOF: Final = sha256().digest_size
HELLO_SIZE: Final = len(MAGIC) + 1 + _NONCE
ANSWER_SIZE: Final = _NONCE + _PROOF


class ChannelRefused(Exception):
    """The other side does not prove that it knows the secret."""


class ChannelKey:
    """The secret, from which the key of each connection is derived. It is never shown."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"a secret must have at least {MIN_SECRET_BYTES} bytes")
        self._secret = secret

    @classmethod
    def new(cls) -> "ChannelKey":
        return cls(token_bytes(MIN_SECRET_BYTES))

    def of(self, kind: Kind, name: str) -> bytes:
        """Return the key of connections of that kind to the process of that name."""
        return hmac.digest(self._secret, MAGIC + _BYTES[kind] + name.encode(), "sha256")

    def reveal(self) -> bytes:
        return self._secret


class ServerProof:
    """The server's side of the handshake of one connection."""

    def __init__(self, keys: Mapping[Kind, bytes]) -> None:
        """`keys` has the key of each kind of connection that is accepted."""
        self._keys = keys
        self._buffer = b""
        self._transcript = b""
        self._key = b""
        self.kind: Kind | None = None
        """Kind of the connection, once it is proved."""

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes to send, and the received ones that follow a valid proof. Raises `ChannelRefused`."""
        self._buffer += data
        answer = b""
        if not self._transcript:
            if self._buffer[: len(MAGIC)] != MAGIC[: len(self._buffer)]:
                raise ChannelRefused("it does not use the protocol of the channel")
            if len(self._buffer) < HELLO_SIZE:
                return b"", b""
            hello, self._buffer = self._buffer[:HELLO_SIZE], self._buffer[HELLO_SIZE:]
            answer = self._answer(hello)
        if len(self._buffer) < _PROOF:
            return answer, b""
        kind = _KINDS[self._transcript[len(MAGIC)]]
        if not hmac.compare_digest(self._buffer[:_PROOF], _proof(self._key, b"client", self._transcript)):
            raise ChannelRefused("it does not know the secret")
        self.kind = kind
        return answer, self._buffer[_PROOF:]

    def _answer(self, hello: bytes) -> bytes:
        kind = _KINDS.get(hello[len(MAGIC)])
        key = None if kind is None else self._keys.get(kind)
        if key is None:
            raise ChannelRefused("it requests a kind of connection that is not accepted here")
        nonce = token_bytes(_NONCE)
        answer = nonce + _proof(key, b"server", hello + nonce)
        self._key, self._transcript = key, hello + answer
        return answer


class ClientProof:
    """The client's side: it sends `hello`, then what `take` returns for the server's answer."""

    def __init__(self, key: bytes, kind: Kind) -> None:
        self._key = key
        self.hello = MAGIC + _BYTES[kind] + token_bytes(_NONCE)

    def take(self, answer: bytes) -> bytes:
        """Verify the server's answer and return the client's proof. Raises `ChannelRefused`."""
        nonce, proof = answer[:_NONCE], answer[_NONCE:]
        if not hmac.compare_digest(proof, _proof(self._key, b"server", self.hello + nonce)):
            raise ChannelRefused("it does not know the secret")
        return _proof(self._key, b"client", self.hello + answer)


def _proof(key: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, role + transcript, "sha256")
