"""Random documents, printed here and by a real Node: texts and hashes must be equal."""

import json
import shutil
import subprocess
from hashlib import sha256
from random import Random

import pytest

from gateway.model.primitives.canonical_json import canonical

DOCUMENTS = 4_000

# One document per line on stdin; its hash and its canonical text per line on stdout.
SCRIPT = """
const { createHash } = require("crypto");
const write = (value) => {
  if (Array.isArray(value)) return "[" + value.map(write).join(",") + "]";
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return "{" + Object.keys(value).sort().map((key) => JSON.stringify(key) + ":" + write(value[key])).join(",") + "}";
};
const lines = require("fs").readFileSync(0, "utf8").split("\\n");
process.stdout.write(lines.map((line) => {
  const text = write(JSON.parse(line));
  return createHash("sha256").update(text, "utf8").digest("hex") + " " + text;
}).join("\\n"));
"""

ALPHABETS = [
    "abcXYZ019_-. $",
    '"\\/<>&\x00\x01\b\t\n\v\f\r\x1f\x7f',
    "éßÅ中\u2028\u2029\ufeff\u0301",
    "\ue000\uf8ff\ufffd\uffff",
    "😀🀄\U00010000\U0010ffff",
    "\ud800\udbff\udc00\udfff",
]
FIXED_KEYS = ["", "10", "9", "1", "01", "-1", "__proto__", "constructor", "toJSON", "length"]


class Documents:
    """Writes JSON source text, so that both sides parse the same characters."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def document(self) -> str:
        return self._value(depth=0)

    def _value(self, depth: int) -> str:
        kind = self._random.random()
        if depth < 5 and kind < (0.9 if depth == 0 else 0.35):
            size = self._random.randrange(6)
            if self._random.random() < 0.6:
                return "{" + ",".join(f"{self._key()}:{self._value(depth + 1)}" for _ in range(size)) + "}"
            return "[" + ",".join(self._value(depth + 1) for _ in range(size)) + "]"
        return self._random.choice([self._number, self._number, self._text, self._constant])()

    def _constant(self) -> str:
        return self._random.choice(["null", "true", "false"])

    def _key(self) -> str:
        return json.dumps(self._random.choice(FIXED_KEYS)) if self._random.random() < 0.2 else self._text()

    def _text(self) -> str:
        """Escaped or raw, but never with a raw half of a surrogate pair, which is not UTF-8."""
        alphabets = self._random.sample(ALPHABETS, 2)
        chars = [self._random.choice(self._random.choice(alphabets)) for _ in range(self._random.randrange(8))]
        text = "".join(chars)
        is_valid = not any("\ud800" <= char <= "\udfff" for char in text)
        return json.dumps(text, ensure_ascii=not is_valid or self._random.random() < 0.5)

    def _number(self) -> str:
        return self._random.choice([self._double, self._short, self._integer, self._near_the_edges])()

    def _double(self) -> str:
        return repr(self._random.uniform(-10, 10) * 10.0 ** self._random.randrange(-320, 308))

    def _short(self) -> str:
        digits = self._random.randrange(10**6)
        return f"{digits}.{self._random.randrange(1000)}e{self._random.randrange(-340, 330)}"

    def _integer(self) -> str:
        sign = self._random.choice(["", "-"])
        return sign + str(self._random.randrange(1, 10 ** self._random.randrange(1, 40)))

    def _near_the_edges(self) -> str:
        edges = [2**53, 10**21, 10**20, 2**63, 2**64, 10**15, 10**308]
        offset = self._random.choice([-1025, -2, -1, 0, 1, 2, 1025])
        special = ["-0", "-0.0", "0e5", "1e400", "-1e400", "1e-400", "5e-324", "2.2250738585072014e-308", "1E3"]
        small = ["0.00001", "0.000001", "0.0000001", "0.00000123", "123456789.000001", "1e-6", "9.99e-7"]
        return self._random.choice([*special, *small, str(self._random.choice(edges) + offset), "9" * 400])


def test_random_documents_print_as_in_node() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, so there is nothing to compare with")
    documents = Documents(seed=2026)
    sources = [documents.document() for _ in range(DOCUMENTS)]

    done = subprocess.run([node, "-e", SCRIPT], input="\n".join(sources).encode(), capture_output=True, check=True)

    answers = done.stdout.decode().split("\n")
    assert len(answers) == DOCUMENTS
    for source, answer in zip(sources, answers, strict=True):
        text = canonical(json.loads(source))
        assert (source, f"{sha256(text.encode()).hexdigest()} {text}") == (source, answer)
