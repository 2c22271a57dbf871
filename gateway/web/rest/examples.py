"""Examples of answers for the OpenAPI document: one record of a call for each outcome, and problems."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from gateway.web.problems import problem
from gateway.web.rest.statuses import Outcome

_HREF: Final = "/v1/{}/call_5b1c?turn=turn_Zk3v"
_ARTIFACT: Final = {
    "callId": "call_5b1c",
    "kind": "SpooledArtifact",
    "type": "text",
    "byteLength": 17,
    "lineCount": 1,
    "href": _HREF.format("artifacts"),
    "contentHref": "/v1/artifacts/call_5b1c/content?turn=turn_Zk3v",
}
_TEXTS: Final[Mapping[Outcome, str]] = {
    "pending": "this call waits for approval (a refund over 100: 1 more approval is needed)",
    "denied": "the policy does not permit this call",
    "missing": "there is no tool named 'refund_order'",
    "invalid": "the arguments do not satisfy the tool's input schema: 'order' is required",
    "failed": "the tool failed while running: no answer within 10s",
    "limited": "the rate 'few refunds' lets 5 calls through per 1m; try again in 42 s",
    "unavailable": "the call was not made: the backend keeps failing and is not asked for a while",
}
_BESIDE: Final[Mapping[Outcome, Mapping[str, Any]]] = {
    "pending": {
        "pending": {
            "status": "pending",
            "retryAfter": 5,
            "approvals": [
                {
                    "id": "apr_9fQ2",
                    "rule": "large-refunds",
                    "reason": "a refund over 100",
                    "expiresAt": "2026-01-05T10:15:00Z",
                    "href": "/v1/approvals/apr_9fQ2",
                }
            ],
        }
    },
    "limited": {"limited": {"status": "limited", "kind": "rate", "rule": "few refunds", "retryAfter": 42}},
}


def called_example(outcome: Outcome) -> dict[str, Any]:
    """The record of a call with that outcome, in the shape of the component `Called`."""
    text = _TEXTS.get(outcome, "refunded order 17")
    is_error = outcome in _TEXTS
    result = {"kind": "text", "text": text} if is_error else {"kind": "artifact", "artifact": _ARTIFACT, "text": text}
    return {
        "callId": "call_5b1c",
        "turn": "turn_Zk3v",
        "tool": "refund_order",
        "checksum": "6f1ed002ab5595859014ebf0951522d9",
        "isError": is_error,
        "inline": True,
        "trusted": False,
        "result": result,
        "rendered": text,
        "startedAt": "2026-01-05T10:00:00Z",
        "completedAt": "2026-01-05T10:00:01Z",
        **_BESIDE.get(outcome, {}),
    }


def problem_example(status: int, description: str) -> dict[str, Any]:
    """A problem document with that status."""
    return problem(HTTPStatus(status), description)
