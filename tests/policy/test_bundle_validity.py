"""The end of validity of the live revision, and the messages about it."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.policy.bundle_validity import EXPIRY_WARNING_PERIOD, Validity

HOUR = timedelta(hours=1)


def expire_in(left: timedelta, *, grace: timedelta = timedelta(days=1)) -> Validity:
    return Validity(grace, datetime.now(UTC) + left)


@pytest.mark.parametrize(
    ("left", "state", "changes", "reads"),
    [
        pytest.param(EXPIRY_WARNING_PERIOD + HOUR, "current", True, True, id="long to go"),
        pytest.param(HOUR, "ending", True, True, id="near its end"),
        pytest.param(-HOUR, "expired", False, True, id="in the grace"),
        pytest.param(-timedelta(days=2), "over", False, False, id="past the grace"),
    ],
)
def test_calls_that_may_change_something_end_first(left: timedelta, state: str, changes: bool, reads: bool) -> None:
    found = expire_in(left)

    assert found.state == state
    assert found.is_refused(is_consequential=True) is not changes
    assert found.is_refused(is_consequential=False) is not reads
    assert (found.problem is None) == (state == "current")


def test_what_has_no_end_is_never_refused() -> None:
    found = Validity()

    assert (found.state, found.problem, found.describe) == ("current", None, None)
    assert not found.is_refused(is_consequential=True)
