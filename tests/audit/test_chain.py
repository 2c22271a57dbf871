"""Chains: hashes that any reader can compute, continuation after a restart, and rollback of unwritten entries."""

import json
from hashlib import sha256

import pytest

from gateway.audit.chain import (
    SHARD_NAME,
    Chain,
    ChainHead,
    InvalidShard,
    collect_statements,
    find_open_heads,
    genesis_hash,
    has_valid_hash,
    shard_name,
)
from tests.audit.sample_logs import NOON, PLACE, log, mark, sample_entries


def test_hash_is_the_documented_one() -> None:
    first, second, *_ = log("alpha")

    assert first.prev == genesis_hash("alpha") == sha256(b"gateway-audit/1\x00alpha").digest()
    assert first.hash == sha256(first.prev + (1).to_bytes(8, "big") + first.body).digest()
    assert second.prev == first.hash
    assert second.hash == sha256(first.hash + (2).to_bytes(8, "big") + second.body).digest()


def test_first_entry_names_its_shard_and_what_it_follows() -> None:
    before = log("alpha")[-1]

    opening = log("beta", after=[mark(before)])[0]

    assert json.loads(opening.body)["log"]["opened"] == {
        "shard": "beta",
        "predecessors": [{"shard": "alpha", "seq": 8, "hash": before.hash.hex()}],
    }


def test_chain_goes_on_from_its_last_row() -> None:
    rows = log(length=8)

    resumed = Chain.resume(rows[4])

    assert resumed.append([(row.at or 0, row.body) for row in rows[5:]]) == rows[5:]
    assert resumed.head == ChainHead("alpha", 8, rows[-1].hash)
    assert resumed.head.mark == mark(rows[-1])


def test_rows_that_were_not_kept_are_taken_back() -> None:
    rows = log(length=5)
    chain = Chain.resume(rows[-1])
    before = chain.head
    lost = chain.append([(NOON, sample_entries(6).encode())])

    chain.rewind(before)

    assert chain.append([(NOON, sample_entries(6).encode())]) == lost


def test_names_of_shards_sort_by_age_and_are_valid() -> None:
    names = [shard_name("höst one/2", NOON + age, unique=f"{9 - age}\n") for age in range(3)]

    assert names[0] == "20261118T110640.000000Z.h-st-one-2.9-"
    assert names == sorted(names)
    assert all(SHARD_NAME.fullmatch(name) for name in names)
    assert SHARD_NAME.fullmatch(shard_name("h" * 500, NOON, unique="u" * 500))


def test_shard_follows_what_no_other_shard_names() -> None:
    alpha, beta = log("alpha"), log("beta", 3)
    gamma = log("gamma", 2, after=[mark(alpha[-1]), mark(beta[1])])
    heads = [Chain.resume(rows[-1]).head for rows in (alpha, beta, gamma)]

    assert find_open_heads(heads, collect_statements(gamma)) == [mark(beta[-1]), mark(gamma[-1])]
    assert find_open_heads(heads, collect_statements([])) == [mark(rows[-1]) for rows in (alpha, beta, gamma)]


def test_shards_with_equal_entries_have_no_equal_hash() -> None:
    assert not {row.hash for row in log("alpha")} & {row.hash for row in log("beta")}


@pytest.mark.parametrize("shard", ["", "-a", "a b", "a\nb", "a|b", "é", "a" * 129], ids=repr)
def test_shard_has_a_plain_name(shard: str) -> None:
    with pytest.raises(InvalidShard, match="is not a valid shard name"):
        Chain(shard)


@pytest.mark.parametrize(
    ("seq", "head"),
    [
        pytest.param(-1, b"h" * 32, id="negative"),
        pytest.param(2**63, b"h" * 32, id="past-the-end"),
        pytest.param(5, b"short", id="no-hash"),
        pytest.param(5, None, id="without-its-hash"),
        pytest.param(0, b"h" * 32, id="hash-of-nothing"),
    ],
)
def test_chain_begins_nowhere_else(seq: int, head: bytes | None) -> None:
    with pytest.raises(InvalidShard, match="cannot resume a shard at entry"):
        Chain("alpha", seq, head)


def test_damaged_row_is_not_gone_on_from() -> None:
    row = log()[-1]._replace(body=b"{}")

    assert not has_valid_hash(row)
    with pytest.raises(InvalidShard, match="does not match its hash") as refused:
        Chain.resume(row)
    assert "gateway audit verify" in (refused.value.help or "")


def test_shard_is_opened_once_and_before_anything_else() -> None:
    chain = Chain("alpha")
    with pytest.raises(InvalidShard, match="is not open"):
        chain.append([(NOON, b"{}")])
    chain.open(PLACE, at=NOON)

    with pytest.raises(InvalidShard, match="is already open"):
        chain.open(PLACE, at=NOON)


@pytest.mark.parametrize(
    "head", [ChainHead("beta", 1, b"h" * 32), ChainHead("alpha", 9, b"h" * 32)], ids=["other", "later"]
)
def test_chain_is_not_rewound_to_where_it_never_was(head: ChainHead) -> None:
    chain = Chain.resume(log()[-1])

    with pytest.raises(InvalidShard, match="has not been at"):
        chain.rewind(head)
