"""Warnings before and after the served bundle expires."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from gateway.app.bundle import BundleExpiryMonitor
from gateway.policy.bundle_validity import EXPIRY_WARNING_PERIOD, Validity

HOUR = timedelta(hours=1)


def test_each_expiry_warning_is_logged_once_and_again_for_a_new_bundle(caplog: pytest.LogCaptureFixture) -> None:
    found = Validity(timedelta(days=1), datetime.now(UTC) + HOUR)
    expiring = BundleExpiryMonitor(found)
    with caplog.at_level(logging.INFO):
        for left in (HOUR, HOUR, -HOUR, -HOUR, EXPIRY_WARNING_PERIOD * 2, -HOUR):
            found.until = datetime.now(UTC) + left
            expiring.check()

    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "ERROR"]
