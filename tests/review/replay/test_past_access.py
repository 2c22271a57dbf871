"""What a replay decides about calls whose policy rows have ended since, or ended before."""

from pathlib import Path

from tests.review.replay.every_rule import POLICY
from tests.review.replay.sample_calls import access_of, only_group, recorded, replay

ROW = "p, role:agent, *, tool:*, invoke|read, community, allow"
"""The row that allows calls of agents."""
ENDING = POLICY.replace(ROW, f"# until 2026-11-19T12:01Z OPS-1: {ROW}\n{ROW}")


def test_row_that_ended_since_allows_the_calls_of_its_time(tmp_path: Path) -> None:
    access = access_of(tmp_path, policy=ENDING)

    result = replay([recorded(after=0), recorded(after=59)], access)

    assert (result.groups, result.unreplayed, result.same) == ((), (), 2)


def test_row_that_ended_before_a_call_does_not_allow_it(tmp_path: Path) -> None:
    access = access_of(tmp_path, policy=ENDING)

    result = replay([recorded(after=59), recorded(after=60), recorded(after=61)], access)

    group = only_group(result)
    assert (group.change, group.calls, result.same) == ("allow-to-deny", 2, 1)
