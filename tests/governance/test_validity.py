"""Until when what is served counts, and what is said of it."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from gateway.governance.validity import SOON, Validity
from gateway.runtime.expiring import Expiring

HOUR = timedelta(hours=1)


def ending(left: timedelta, *, grace: timedelta = timedelta(days=1)) -> Validity:
    return Validity(grace, datetime.now(UTC) + left)


@pytest.mark.parametrize(
    ("left", "state", "changes", "reads"),
    [
        pytest.param(SOON + HOUR, "current", True, True, id="long to go"),
        pytest.param(HOUR, "ending", True, True, id="near its end"),
        pytest.param(-HOUR, "expired", False, True, id="in the grace"),
        pytest.param(-timedelta(days=2), "over", False, False, id="past the grace"),
    ],
)
def test_calls_that_may_change_something_end_first(left: timedelta, state: str, changes: bool, reads: bool) -> None:
    found = ending(left)

    assert found.state == state
    assert found.refuses(is_consequential=True) is not changes
    assert found.refuses(is_consequential=False) is not reads
    assert (found.problem is None) == (state == "current")


def test_what_has_no_end_is_never_refused() -> None:
    found = Validity()

    assert (found.state, found.problem, found.told) == ("current", None, None)
    assert not found.refuses(is_consequential=True)


def test_each_turn_is_said_once_and_again_for_what_came_instead(caplog: pytest.LogCaptureFixture) -> None:
    found = ending(HOUR)
    expiring = Expiring(found)
    with caplog.at_level(logging.INFO):
        for left in (HOUR, HOUR, -HOUR, -HOUR, SOON * 2, -HOUR):
            found.until = datetime.now(UTC) + left
            expiring.look()

    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "ERROR"]
