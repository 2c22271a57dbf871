"""Ids: well-formed, unique, and not shared with a forked child."""

import os
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from gateway.model.primitives.identifiers import new_id, new_token, random_bytes


def test_ids_are_uuids_of_version_four() -> None:
    for _ in range(1_000):
        parsed = UUID(text := new_id())
        assert (str(parsed), parsed.version, parsed.variant) == (text, 4, "specified in RFC 4122")


def test_no_id_is_given_out_twice_by_many_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda _: new_id(), range(20_000)))

    assert len(set(drawn)) == len(drawn)


def test_tokens_have_the_asked_for_randomness_in_safe_characters() -> None:
    tokens = {new_token(24) for _ in range(1_000)}

    assert len(tokens) == 1_000
    assert {len(token) for token in tokens} == {12 + 32}
    assert len({token[12:] for token in tokens}) == 1_000
    assert set("".join(tokens)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_every_digit_of_an_id_is_random_but_for_version_and_variant() -> None:
    drawn = [new_id() for _ in range(2_000)]

    different = [len({id[place] for id in drawn}) for place in range(36)]
    assert different == [*[16] * 8, 1, *[16] * 4, 1, 1, *[16] * 3, 1, 4, *[16] * 3, 1, *[16] * 12]


def test_tokens_can_be_of_any_size() -> None:
    assert [len(new_token(size)) for size in (8, 16, 24, 30)] == [12 + 11, 12 + 22, 12 + 32, 12 + 40]


def test_tokens_that_were_made_together_lie_together() -> None:
    earlier, later = new_token(24), new_token(24)

    assert int(later[:12], 16) - int(earlier[:12], 16) in range(60_000)


def test_bytes_of_every_size_can_be_had() -> None:
    assert [len(random_bytes(size)) for size in (0, 8, 9, 32, 100_000)] == [0, 8, 9, 32, 100_000]


def test_no_piece_is_given_out_twice_however_often_more_is_fetched() -> None:
    drawn = [random_bytes(16) for _ in range(2_000)]

    assert len(set(drawn)) == len(drawn)


def test_forked_child_draws_other_ids_than_its_parent() -> None:
    new_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = os.read(read, 100).decode()
    os.close(read)
    os.close(write)

    assert drawn
    assert drawn != new_id()
