"""Shipments of the example carrier, kept in memory. Knows what may be asked of them, and no HTTP."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.examples.tickets import Refused

CUSTOMER: Final = "acme"
STATES: Final = ("announced", "under way", "delivered")
MAX_FOUND: Final = 50

Record = dict[str, Any]

_SHIPMENTS: Final[tuple[Record, ...]] = (
    {
        "reference": "FR-2041",
        "order": "A-1001",
        "state": "under way",
        "expected": "2026-11-18",
        "events": [
            {"at": "2026-11-14T08:10:00Z", "place": "Hamburg", "what": "taken over"},
            {"at": "2026-11-15T19:42:00Z", "place": "Kassel", "what": "sorted"},
        ],
    },
    {
        "reference": "FR-2007",
        "order": "A-0988",
        "state": "delivered",
        "expected": "2026-11-11",
        "events": [{"at": "2026-11-11T14:05:00Z", "place": "Ulm", "what": "handed over"}],
    },
    {"reference": "FR-2055", "order": "A-1007", "state": "announced", "expected": "2026-11-20", "events": []},
)


def shipment(reference: str) -> Record:
    found = next((each for each in _SHIPMENTS if each["reference"] == reference), None)
    if found is None:
        raise Refused(404, "there is no such shipment")
    return found


def find_shipments(asked: Mapping[str, str]) -> Record:
    """Those of a customer, without what happened to them; of one order or in one state if that is asked for."""
    if asked.get("customer") != CUSTOMER:
        raise Refused(403, "the token is that of another customer")
    if asked.get("state", STATES[0]) not in STATES:
        raise Refused(400, f"'state' is one of {', '.join(STATES)}")
    limit = asked.get("limit", "20")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:3]) <= MAX_FOUND):
        raise Refused(400, f"'limit' is a number from 1 to {MAX_FOUND}")
    wanted = {key: asked[key] for key in ("order", "state") if key in asked}
    found = [each for each in _SHIPMENTS if all(each[key] == value for key, value in wanted.items())]
    return {"shipments": [{**each, "events": []} for each in found[: int(limit)]], "total": len(found)}
