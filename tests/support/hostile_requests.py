"""Generates requests that no library sends, from a grammar and a seed: targets, framing, trailers, splits."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Choice = Sequence[bytes]


@dataclass(frozen=True)
class Sent:
    """The pieces sent over one connection, and the maximum number of requests in them."""

    pieces: tuple[bytes, ...]
    requests: int


METHODS: Choice = [b"GET", b"POST", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"PUT", b"PATCH", b"CONNECT", b"TRACE"]
ODD_METHODS: Choice = [b"get", b"G E T", b"", b"PRI", b"PROPFIND", b"SOURCE", b"\x00", b"GET" * 50, b"M-SEARCH"]
PATHS: Choice = [b"/livez", b"/readyz", b"/v1/catalogues", b"/v1/tools", b"/desk/mcp", b"/mcp", b"/status", b"/metrics"]
SEGMENTS: Choice = [
    b"..",
    b".",
    b"%2e%2e",
    b"%2E",
    b"%2f",
    b"%5c",
    b"%00",
    b"%",
    b"%zz",
    b"%ff",
    b"",
    b"a",
    b";",
    b"#",
    b"@",
]
VERSIONS: Choice = [b"HTTP/1.1"] * 12 + [
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"HTTP/1.2",
    b"HTTP/9",
    b"http/1.1",
    b"",
]
CODINGS: Choice = [b"chunked"] * 6 + [
    *(b"Chunked", b"gzip, chunked", b"chunked, chunked", b"xchunked", b"chunked ", b"chunked\t", b"identity", b"gzip"),
    *(b",chunked", b"\x0bchunked", b"chunked;x", b"", b"chunked\r\n gzip"),
]
LENGTHS: Choice = [b"0", b"1", b"5", b"-1", b"+5", b"0x5", b"5, 5", b"5 5", b"", b"00005", b"9" * 30, b"1e1", b"5\x00"]
NAMES: Choice = [
    b"X-A",
    b"Host",
    b"Authorization",
    b"Content-Type",
    b"Origin",
    b"Connection",
    b"Expect",
    b"Upgrade",
    b"Cookie",
]
ODD_NAMES: Choice = [
    b"",
    b" X",
    b"X ",
    b"X Y",
    b"X(",
    b"\x00",
    b"\xc3\xa9",
    b"X" * 300,
    b"Host ",
    b"Transfer-Encoding ",
    b"X\r",
]
VALUES: Choice = [
    *(
        b"a",
        b"",
        b" ",
        b"\t",
        b"a" * 200,
        b"\xff",
        b"\x01",
        b"\x00",
        b"a\rb",
        b"a\nb",
        b"a\r\n b",
        b"close",
        b"upgrade",
    ),
    *(
        b"keep-alive, close",
        b"100-continue",
        b"websocket",
        b"h2c",
        b"null",
        b"http://evil.example",
        b"application/json",
    ),
]
JSON: Choice = [
    b"{}",
    b"[]",
    b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":"{}"}}',
    b"[" * 200 + b"]" * 200,
    b"[" + b"[]," * 2000 + b"[]]",
    b'{"a":1,"a":2}',
    b'{"arguments":{}}',
    b"\xff",
    b"",
]


class Hostile:
    """Generates connections endlessly. `canary` is an address to which nothing may be forwarded."""

    def __init__(self, seed: int, *, canary: str, token: str) -> None:
        self._rng = random.Random(seed)
        self._canary = canary.encode()
        self._token = token.encode()

    def connection(self) -> Sent:
        rng = self._rng
        requests = [self._request() for _ in range(rng.choice([1, 1, 1, 2, 3, 6]))]
        content = b"".join(requests)
        count = len(requests)
        if rng.random() < 0.15:
            content = self._garbled(content)
            count = content.count(b"HTTP") + content.count(b"\n")
        return Sent(self._split(content), count)

    def _request(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.4:
            return self._ordinary()
        method = rng.choice(METHODS if rng.random() < 0.9 else ODD_METHODS)
        headers, body = self._framed()
        headers = [self._host(), *headers, *self._others()]
        rng.shuffle(headers)
        line = b"%b %b %b" % (method, self._target(), rng.choice(VERSIONS))
        end = b"\r\n" if rng.random() < 0.97 else rng.choice([b"\n", b"\r", b"\r\r\n"])
        return end.join([line, *headers, b"", b""]) + body

    def _ordinary(self) -> bytes:
        """Return a valid request, to be sent before or after an invalid one."""
        rng = self._rng
        body = rng.choice(JSON[:4])
        coding, body = rng.choice(
            [
                (b"Content-Length: %d" % len(body), body),
                (b"Transfer-Encoding: chunked", b"%x\r\n%b\r\n0\r\n\r\n" % (len(body) or 1, body or b" ")),
                (b"Transfer-Encoding: chunked", b"0\r\nHost: evil.example\r\nX: y\r\n\r\n"),
                (b"Expect: 100-continue\r\nContent-Length: %d" % len(body), body),
            ]
        )
        head = [b"Host: localhost", b"Authorization: Bearer " + self._token, b"Content-Type: application/json", coding]
        return b"\r\n".join([b"POST %b HTTP/1.1" % rng.choice(PATHS), *head, b"", body])

    def _target(self) -> bytes:
        rng = self._rng
        path = rng.choice(PATHS)
        match rng.randrange(10):
            case 0:
                return (
                    rng.choice([b"*@", b"@", b"http://", b"//", b"*", b"", b"https://a@", b"/\\", b"\\\\"])
                    + self._canary
                    + path
                )
            case 1:
                return rng.choice([b"*", b"", b"/", b"//", b"?", b"#", b"http:", b"/" * 300, b"/" + b"a" * 9000])
            case 2 | 3:
                return path + b"/" + b"/".join(rng.choices(SEGMENTS, k=rng.randrange(1, 4)))
            case 4:
                return (
                    path
                    + b"?"
                    + rng.choice([b"a=b", b"%", b"%00", b"a" * 5000, b"\xff", b"//" + self._canary, b"a=b&a=b"])
                )
            case 5:
                at = rng.randrange(len(path) + 1)
                return path[:at] + bytes([rng.randrange(256)]) + path[at:]
            case _:
                return path

    def _host(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.85:
            return b"Host: localhost"
        return b"Host: " + rng.choice(
            [self._canary, b"", b"a b", b"[::1", b"localhost, localhost", b"a\r\nHost: localhost"]
        )

    def _others(self) -> list[bytes]:
        rng = self._rng
        found = [b"Authorization: Bearer " + self._token] if rng.random() < 0.5 else []
        if rng.random() < 0.3:
            found.append(b"Mcp-Session-Id: " + rng.choice([b"1.x", b"0.x", b"999.x", self._canary, b"\xff"]))
        if rng.random() < 0.3:
            found.append(b"Content-Type: application/json")
        for _ in range(rng.choice([0, 0, 1, 2, 200] if rng.random() < 0.05 else [0, 1])):
            name = rng.choice(NAMES if rng.random() < 0.7 else ODD_NAMES)
            found.append(name + rng.choice([b": ", b":", b" : ", b""]) + rng.choice(VALUES))
        return found

    def _framed(self) -> tuple[list[bytes], bytes]:
        rng = self._rng
        body = rng.choice(JSON)
        kinds: list[Callable[[bytes], tuple[list[bytes], bytes]]] = [self._plain, self._chunked, self._odd]
        return ([], b"") if rng.random() < 0.4 else rng.choice(kinds)(body)

    def _plain(self, body: bytes) -> tuple[list[bytes], bytes]:
        return [b"Content-Length: %d" % len(body)], body

    def _odd(self, body: bytes) -> tuple[list[bytes], bytes]:
        rng = self._rng
        pairs = [b"Content-Length: " + rng.choice(LENGTHS), b"Transfer-Encoding: " + rng.choice(CODINGS)]
        chosen = rng.choices(pairs, k=rng.choice([1, 2]))
        return chosen, rng.choice([body, self._chunks(body), b"0\r\n\r\n"])

    def _chunked(self, body: bytes) -> tuple[list[bytes], bytes]:
        return [b"Transfer-Encoding: " + self._rng.choice(CODINGS)], self._chunks(body)

    def _chunks(self, body: bytes) -> bytes:
        rng = self._rng
        size = rng.choice([1, 3, 64, 4096]) if len(body) < 200 else 4096
        extension = rng.choice([b"", b"", b"", b";a=b", b";" + b"a" * 3000, b";\x00", b" ", b';a="\r\n"'])
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        found = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
        last = rng.choice(
            [b"0\r\n", b"0\r\n", b"0\r\n", b"00\r\n", b"0;a\r\n", b"-0\r\n", b"g\r\n", b"fffffffffffffffff\r\n"]
        )
        return found + last + self._trailers() + b"\r\n"

    def _trailers(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.6:
            return b""
        named = [b"Authorization: Bearer " + self._token, b"Host: localhost", b"Content-Length: 5", b"X: " + b"y" * 500]
        named += [b"Transfer-Encoding: chunked", b": x", b"x", b" x: y", b"X: \x00"]
        return b"".join(each + b"\r\n" for each in rng.choices(named, k=rng.choice([1, 2, 40])))

    def _garbled(self, content: bytes) -> bytes:
        rng = self._rng
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(content) + 1)
            match rng.randrange(4):
                case 0:
                    content = content[:at] + bytes([rng.randrange(256)]) + content[at:]
                case 1:
                    content = content[:at] + content[at + rng.randrange(1, 20) :]
                case 2:
                    content = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
                case _:
                    content = content[:at]
        return content

    def _split(self, content: bytes) -> tuple[bytes, ...]:
        """Split into one piece, two pieces, or, if short, single bytes."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.6 or not content:
            return (content,)
        if kind > 0.99 and len(content) < 400:
            return tuple(content[at : at + 1] for at in range(len(content)))
        at = rng.randrange(len(content))
        return content[:at], content[at:]
