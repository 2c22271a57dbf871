"""Logs to verify: short chains of ordinary entries, their anchors, and tables as a gateway keeps them."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gateway.audit.anchors import Anchoring, SignedAnchor, parsed
from gateway.audit.chain import Chain, Row
from gateway.audit.entries import (
    Caller,
    CallPart,
    Client,
    DecisionPart,
    Entry,
    Mark,
    OutcomePart,
    Place,
    Target,
)
from gateway.audit.keys import SigningKey
from gateway.audit.lines import NotAnEntry, line_of, row_of

NOON = 1_795_000_000_000_000
KEY = SigningKey.load(bytes(range(200, 232)))
OTHER_KEY = SigningKey.load(bytes(range(101, 133)))
PLACE = Place("gw-1", "c" * 64, "p" * 64, "0123456789abcdef")
ANA = Caller("user:ana", "acme", ("role:clerk",), "https://idp.example", "jwt", "d" * 64, Client("desk", "1.2"))
REFUND = Target("order_refund", "desk", "native/order_refund", "e" * 64, "internal")


def settled(number: int) -> Entry:
    return Entry(
        "call-settled",
        NOON + number * 1000,
        PLACE,
        ANA,
        REFUND,
        CallPart(f"call-{number}", "turn-1", None, "f" * 64, True),
        DecisionPart("allow", "permitted", ("policies/policy.csv:12",), "policies/policy.csv:12"),
        OutcomePart("ok", None, 120, None, "9" * 64, "internal"),
    )


def log(shard: str = "alpha", length: int = 8, *, after: Sequence[Mark] = (), more: Sequence[Entry] = ()) -> list[Row]:
    """A shard of that many entries, the opening included, and then some more."""
    chain = Chain(shard)
    opening = chain.open(PLACE, at=NOON, predecessors=after)
    entries = [*map(settled, range(2, length + 1)), *more]
    return [opening, *chain.append((entry.at, entry.encode()) for entry in entries)]


def mark(row: Row) -> Mark:
    return Mark(row.shard, row.seq, row.hash.hex())


class Kept:
    """Rows that somebody has: anything iterable twice."""

    def __init__(self, *rows: Iterable[Row]) -> None:
        self.rows = [row for some in rows for row in some]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def statements(self) -> Iterator[Row]:
        return iter(self.rows)


class Lines:
    """Lines as a file would have them."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.lines = list(lines)

    def __iter__(self) -> Iterator[Row]:
        for number, line in enumerate(self.lines, start=1):
            row = row_of(line)
            if row is None:
                raise NotAnEntry(number, f"line {number} is none")
            yield row

    def statements(self) -> Iterator[Row]:
        return (row for line in self.lines if (row := row_of(line)) is not None)


class AnchorList:
    """A sink that keeps lines in memory."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)

    @property
    def anchors(self) -> list[SignedAnchor]:
        found = [parsed(line.rstrip(b"\n"), number) for number, line in enumerate(self.lines, start=1)]
        return [each for each in found if isinstance(each, SignedAnchor)]


def anchored(*rows: Row, key: SigningKey = KEY) -> list[SignedAnchor]:
    """One anchor for each of these rows, in their order."""
    sink = AnchorList()
    writers: dict[str, Anchoring] = {}
    for row in rows:
        writer = writers.setdefault(row.shard, Anchoring(key, sink))
        writer.anchor(Chain.resume(row).head, NOON)
    return sink.anchors


def rewritten(rows: Sequence[Row], start: int) -> list[Row]:
    """The same shard with another truth from an entry on, and every hash made to fit."""
    kept = list(rows[: start - 1])
    chain = Chain.resume(kept[-1]) if kept else Chain(rows[0].shard)
    if not kept:
        kept, start = [chain.open(Place("gw-evil"), at=NOON)], 2
    bodies = [(row.at or 0, row.body.replace(b"user:ana", b"user:eve")) for row in rows[start - 1 :]]
    return [*kept, *chain.append(bodies)]


def write_lines(path: Path, rows: Iterable[Row]) -> Path:
    path.write_bytes(b"".join(map(line_of, rows)))
    return path


def write_table(path: Path, rows: Iterable[Row]) -> Path:
    """The table as migrations make it."""
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE audit (shard TEXT NOT NULL, seq INTEGER NOT NULL, prev BLOB NOT NULL, hash BLOB NOT NULL,"
        " body BLOB NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (shard, seq))"
    )
    connection.executemany("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?)", list(rows))
    connection.commit()
    connection.close()
    return path
