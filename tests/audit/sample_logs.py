"""Logs to verify: short chains of ordinary entries, their anchors, and tables as a gateway stores them."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gateway.audit.anchors import AnchorSigner, SignedAnchor, parse_anchor
from gateway.audit.chain import Chain, ChainRow
from gateway.audit.entries import (
    AuditCall,
    AuditCaller,
    AuditClient,
    AuditDecision,
    AuditEntry,
    AuditOrigin,
    AuditOutcome,
    AuditTarget,
    ChainPosition,
)
from gateway.audit.json_lines import InvalidEntry, from_line, to_line
from gateway.audit.signing_keys import SigningKey

NOON = 1_795_000_000_000_000
KEY = SigningKey.load(bytes(range(200, 232)))
OTHER_KEY = SigningKey.load(bytes(range(101, 133)))
PLACE = AuditOrigin("gw-1", "c" * 64, "p" * 64, "0123456789abcdef")
ANA = AuditCaller(
    "user:ana", "acme", ("role:clerk",), "https://idp.example", "jwt", "d" * 64, AuditClient("desk", "1.2")
)
REFUND = AuditTarget("order_refund", "desk", "native/order_refund", "e" * 64, "internal")


def sample_entries(number: int) -> AuditEntry:
    return AuditEntry(
        "call-settled",
        NOON + number * 1000,
        PLACE,
        ANA,
        REFUND,
        AuditCall(f"call-{number}", "turn-1", None, "f" * 64, True),
        AuditDecision("allow", "permitted", ("policies/policy.csv:12",), "policies/policy.csv:12"),
        AuditOutcome("ok", None, 120, None, "9" * 64, "internal"),
    )


def log(
    shard: str = "alpha", length: int = 8, *, after: Sequence[ChainPosition] = (), more: Sequence[AuditEntry] = ()
) -> list[ChainRow]:
    """A shard of that many entries, including the opening, followed by the additional ones."""
    chain = Chain(shard)
    opening = chain.open(PLACE, at=NOON, predecessors=after)
    entries = [*map(sample_entries, range(2, length + 1)), *more]
    return [opening, *chain.append((entry.at, entry.encode()) for entry in entries)]


def mark(row: ChainRow) -> ChainPosition:
    return ChainPosition(row.shard, row.seq, row.hash.hex())


class StoredAnchors:
    """Stored rows that can be iterated more than once."""

    def __init__(self, *rows: Iterable[ChainRow]) -> None:
        self.rows = [row for some in rows for row in some]

    def __iter__(self) -> Iterator[ChainRow]:
        return iter(self.rows)

    def statements(self) -> Iterator[ChainRow]:
        return iter(self.rows)


class Lines:
    """Lines as they stand in a file."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.lines = list(lines)

    def __iter__(self) -> Iterator[ChainRow]:
        for number, line in enumerate(self.lines, start=1):
            row = from_line(line)
            if row is None:
                raise InvalidEntry(number, f"line {number} is none")
            yield row

    def statements(self) -> Iterator[ChainRow]:
        return (row for line in self.lines if (row := from_line(line)) is not None)


class AnchorList:
    """A sink that stores lines in memory."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self.lines.append(line)

    @property
    def anchors(self) -> list[SignedAnchor]:
        found = [parse_anchor(line.rstrip(b"\n"), number) for number, line in enumerate(self.lines, start=1)]
        return [each for each in found if isinstance(each, SignedAnchor)]


def sign_anchors(*rows: ChainRow, key: SigningKey = KEY) -> list[SignedAnchor]:
    """One anchor for each of these rows, in the same order."""
    sink = AnchorList()
    writers: dict[str, AnchorSigner] = {}
    for row in rows:
        writer = writers.setdefault(row.shard, AnchorSigner(key, sink))
        writer.anchor(Chain.resume(row).head, NOON)
    return sink.anchors


def tamper_log(rows: Sequence[ChainRow], start: int) -> list[ChainRow]:
    """The same shard with changed contents from an entry on, and recomputed hashes."""
    kept = list(rows[: start - 1])
    chain = Chain.resume(kept[-1]) if kept else Chain(rows[0].shard)
    if not kept:
        kept, start = [chain.open(AuditOrigin("gw-evil"), at=NOON)], 2
    bodies = [(row.at or 0, row.body.replace(b"user:ana", b"user:eve")) for row in rows[start - 1 :]]
    return [*kept, *chain.append(bodies)]


def write_lines(path: Path, rows: Iterable[ChainRow]) -> Path:
    path.write_bytes(b"".join(map(to_line, rows)))
    return path


def write_table(path: Path, rows: Iterable[ChainRow]) -> Path:
    """Create the table as the migrations do."""
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE audit (shard TEXT NOT NULL, seq INTEGER NOT NULL, prev BLOB NOT NULL, hash BLOB NOT NULL,"
        " body BLOB NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (shard, seq))"
    )
    connection.executemany("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?)", list(rows))
    connection.commit()
    connection.close()
    return path
