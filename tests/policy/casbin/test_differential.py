"""The authoriser against the reference: the same verdict and the same explaining row, for random policies."""

import pytest

from tests.policy.casbin.differential import differences

PAIRS = 40_000
SHARDS = 4


@pytest.mark.parametrize("shard", range(SHARDS))
def test_authoriser_and_reference_never_differ(shard: int) -> None:
    assert differences(PAIRS // SHARDS, seed=shard) == []
