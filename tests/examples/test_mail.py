"""Mail that is never delivered: a receipt for valid mail, and an error that explains how to fix invalid mail."""

import json

import pytest

from gateway.errors import ToolError
from gateway.examples.mail import send


def test_receipt_names_the_mail() -> None:
    receipt = send("ana@example.com", "Your lamp", "It is on its way. ✓")

    assert receipt == {"number": receipt["number"], "to": "ana@example.com", "subject": "Your lamp", "bytes": 21}
    assert json.loads(json.dumps(receipt)) == receipt


def test_same_mail_has_the_same_number() -> None:
    one, other = send("a@example.com", "x", "y"), send("a@example.com", "x", "z")

    assert one == send("a@example.com", "x", "y")
    assert one["number"] != other["number"]


@pytest.mark.parametrize("address", ["", "ana", "ana@", "@example.com", "ana@localhost", "a b@example.com", "a@b@c.de"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ToolError, match="not a mail address") as refused:
        send(address, "x", "y")

    assert refused.value.help == "write it as name@example.com"
