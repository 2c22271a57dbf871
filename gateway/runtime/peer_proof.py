"""How processes of one deployment prove to each other that they know the same secret, before any HTTP.

    client  MAGIC, kind, 32 random bytes
    server  32 random bytes, HMAC(key, "server", everything before)
    client  HMAC(key, "client", everything before)

The key is derived from the secret for one kind of connection to one named process, so a proof is good for nothing else.
The client checks the server first: what it sends then holds the credentials of callers. Nothing is encrypted.
"""

import hmac
from collections.abc import Mapping
from hashlib import sha256
from secrets import token_bytes
from typing import Final, Literal, get_args

Kind = Literal["forward", "control"]
"""`forward` carries requests of callers, `control` what workers of one host ask each other."""

LEAST_SECRET: Final = 32
"""Bytes of a secret."""
PROOF_SECONDS: Final = 5.0
"""How long a server waits for a proof. A client waits twice as long: a busy process answers late."""

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
        if len(secret) < LEAST_SECRET:
            raise ValueError(f"a secret has at least {LEAST_SECRET} bytes")
        self._secret = secret

    @classmethod
    def new(cls) -> "ChannelKey":
        return cls(token_bytes(LEAST_SECRET))

    def of(self, kind: Kind, name: str) -> bytes:
        """The key of connections of that kind to the process of that name."""
        return hmac.digest(self._secret, MAGIC + _BYTES[kind] + name.encode(), "sha256")

    def reveal(self) -> bytes:
        return self._secret


class ServerProof:
    """The server's side of one connection: it takes bytes until the client has proved itself."""

    def __init__(self, keys: Mapping[Kind, bytes]) -> None:
        """`keys` are those of the kinds of connections that are accepted."""
        self._keys = keys
        self._heard = b""
        self._transcript = b""
        self._key = b""
        self.kind: Kind | None = None
        """Of the connection, once it is proved."""

    def take(self, data: bytes) -> tuple[bytes, bytes]:
        """What to answer, and what came after a valid proof. Raises `ChannelRefused`."""
        self._heard += data
        answer = b""
        if not self._transcript:
            if self._heard[: len(MAGIC)] != MAGIC[: len(self._heard)]:
                raise ChannelRefused("it does not speak the protocol of the channel")
            if len(self._heard) < HELLO_SIZE:
                return b"", b""
            hello, self._heard = self._heard[:HELLO_SIZE], self._heard[HELLO_SIZE:]
            answer = self._answer(hello)
        if len(self._heard) < _PROOF:
            return answer, b""
        kind = _KINDS[self._transcript[len(MAGIC)]]
        if not hmac.compare_digest(self._heard[:_PROOF], _proof(self._key, b"client", self._transcript)):
            raise ChannelRefused("it does not know the secret")
        self.kind = kind
        return answer, self._heard[_PROOF:]

    def _answer(self, hello: bytes) -> bytes:
        kind = _KINDS.get(hello[len(MAGIC)])
        key = None if kind is None else self._keys.get(kind)
        if key is None:
            raise ChannelRefused("it asks for a kind of connection that is not accepted here")
        nonce = token_bytes(_NONCE)
        answer = nonce + _proof(key, b"server", hello + nonce)
        self._key, self._transcript = key, hello + answer
        return answer


class ClientProof:
    """The client's side: `hello` is sent first, then what `take` makes of the server's answer."""

    def __init__(self, key: bytes, kind: Kind) -> None:
        self._key = key
        self.hello = MAGIC + _BYTES[kind] + token_bytes(_NONCE)

    def take(self, answer: bytes) -> bytes:
        """Raises `ChannelRefused`."""
        nonce, proof = answer[:_NONCE], answer[_NONCE:]
        if not hmac.compare_digest(proof, _proof(self._key, b"server", self.hello + nonce)):
            raise ChannelRefused("it does not know the secret")
        return _proof(self._key, b"client", self.hello + answer)


def _proof(key: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.digest(key, role + transcript, "sha256")
