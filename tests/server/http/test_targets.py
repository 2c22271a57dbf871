"""Targets: a path and a query, parsed strictly, so that no other reader finds a host or another path in them."""

import random
import re
from urllib.parse import unquote

import pytest

from gateway.server.http.http1_protocol import ASTERISK, MAX_TARGET, BadTarget, read_target

READ = {
    b"/": ("/", b"/", b""),
    b"/v1/catalogues": ("/v1/catalogues", b"/v1/catalogues", b""),
    b"/a%20b?c=%20": ("/a b", b"/a%20b", b"c=%20"),
    b"/a//b": ("/a//b", b"/a//b", b""),
    b"/a/": ("/a/", b"/a/", b""),
    b"/a?": ("/a", b"/a", b""),
    b"/a?//b/../c?d": ("/a", b"/a", b"//b/../c?d"),
    b"/a?uri=https%3A%2F%2Fx%5C": ("/a", b"/a", b"uri=https%3A%2F%2Fx%5C"),
    b"/%25%32%66": ("/%2f", b"/%25%32%66", b""),  # decoded once
    b"/.well-known/x": ("/.well-known/x", b"/.well-known/x", b""),
    b"/a/...": ("/a/...", b"/a/...", b""),
    b"/%2ehidden": ("/.hidden", b"/%2ehidden", b""),
    b"/%C3%A9": ("/é", b"/%C3%A9", b""),
    b"/a;b=1,2:@!$&'()*+~": ("/a;b=1,2:@!$&'()*+~", b"/a;b=1,2:@!$&'()*+~", b""),
    b"/" + b"a" * (MAX_TARGET - 1): ("/" + "a" * (MAX_TARGET - 1), b"/" + b"a" * (MAX_TARGET - 1), b""),
}

REFUSED = [
    b"",
    b"*",
    b"**",
    b"*@127.0.0.1:80/x",
    b"*/x",
    b"a",
    b"a/b",
    b"?a",
    b"http://localhost/",
    b"HTTP://localhost/livez",
    b"http:/a",
    b"http:a",
    b"localhost:80",
    b"127.0.0.1:80",
    b"@127.0.0.1:80/x",
    b"//localhost/livez",
    b"//",
    b"///a",
    b"\\\\localhost/a",
    b"/\\localhost/a",
    b"/a\\b",
    b"/a#b",
    b"/a?b#c",
    b"/a b",
    b"/a\tb",
    b"/a\x00b",
    b"/a\x7f",
    b"/a\xc3\xa9",
    b"/a?\xc3\xa9",
    b"/a?b c",
    b'/a?"',
    b"/<a>",
    b"/{a}",
    b"/a|b",
    b"/a^b",
    b"/a`b",
    b"/[a]",
    b"/%2f",
    b"/a%2Fb",
    b"/a%5cb",
    b"/a%5Cb",
    b"/a%00",
    b"/a%0a",
    b"/a%0D",
    b"/a%7f",
    b"/a?%00",
    b"/%",
    b"/%2",
    b"/%g0",
    b"/%2g",
    b"/a?%",
    b"/a?%zz",
    b"/%u0041",
    b"/%ff",
    b"/%c0%af",
    b"/%ed%a0%80",
    b"/.",
    b"/..",
    b"/../a",
    b"/a/..",
    b"/a/./b",
    b"/a/../b",
    b"/%2e",
    b"/%2E%2e/a",
    b"/a/.%2e/b",
    b"/a/%2e./b",
    b"/a%2f..%2fb",
    b"/a/..%2fb",
    b"/a\r\nX: y",
    b"/a\n",
    b"/" + b"a" * MAX_TARGET,
]


@pytest.mark.parametrize("target", READ, ids=lambda each: repr(each[:40]))
def test_target_is_a_path_and_a_query(target: bytes) -> None:
    assert read_target(b"GET", target) == READ[target]


@pytest.mark.parametrize("target", REFUSED, ids=lambda each: repr(each[:40]))
def test_what_another_reader_could_read_otherwise_is_refused(target: bytes) -> None:
    for method in (b"GET", b"POST", b"CONNECT", *([b"OPTIONS"] if target != b"*" else [])):
        with pytest.raises(BadTarget) as refusal:
            read_target(method, target)
        assert str(refusal.value).isascii()


def test_asterisk_is_for_options_alone() -> None:
    assert read_target(b"OPTIONS", b"*") is ASTERISK


def test_generated_targets_are_read_as_sent_or_not_at_all() -> None:
    rng = random.Random(20_240_611)
    pieces = [b"/", b"//", b".", b"..", b"%2e", b"%2f", b"%5C", b"%00", b"%", b"?", b"#", b"@", b":", b"*", b"\\"]
    pieces += [b"a", b"v1", b"http:", b"localhost", b"%c3", b"%a9", b"%41", b"\xff", b" ", b"\t", b";", b"=", b"&"]
    read = 0
    for _ in range(20_000):
        target = rng.choice([b"", b"/", b"/a/"]) + b"".join(rng.choices(pieces, k=rng.randrange(1, 9)))
        try:
            path, raw_path, query = read_target(b"GET", target)
        except BadTarget:
            continue
        read += 1
        assert target in (raw_path, raw_path + b"?" + query), target
        assert raw_path.startswith(b"/"), target
        assert not raw_path.startswith(b"//"), target
        assert path.count("/") == raw_path.count(b"/"), target
        assert not re.search(r"[\\\x00-\x1f\x7f]", path), target
        assert not {".", ".."} & set(path.split("/")), target
        assert path == unquote(raw_path.decode("ascii"), errors="strict"), target
    assert read > 500
