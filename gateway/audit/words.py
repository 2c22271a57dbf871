"""The closed sets of words in the decision log. Alerts are built on them: words are added, none is ever reused."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

Event = Literal[
    "shard-opened",
    "log-pruned",
    "gateway-started",
    "gateway-stopped",
    "config-published",
    "key-rotated",
    "call-decided",
    "call-started",
    "call-settled",
    "call-unknown",
    "call-replayed",
    "approval-requested",
    "approval-granted",
    "approval-refused",
    "approval-expired",
    "approval-used",
    "approval-returned",
    "approval-voided",
    "approval-withdrawn",
    "quarantine-added",
    "quarantine-lifted",
    "token-revoked",
    "token-restored",
    "definition-changed",
    "definition-restored",
]

Effect = Literal["allow", "hold", "deny"]

Reason = Literal[
    "permitted",
    "not-permitted",
    "not-in-audience",
    "unknown-tool",
    "arguments-invalid",
    "tier-refused",
    "not-in-service",
    "rule-allowed",
    "rule-held",
    "rule-denied",
    "rule-observed",
    "window-closed",
    "flow-blocked",
    "loop-stopped",
    "budget-spent",
    "rate-exceeded",
    "quota-exceeded",
    "quarantined",
    "definition-changed",
    "approval-approved",
    "approval-pending",
    "approval-mismatch",
    "approval-expired",
    "approval-refused",
    "approval-withdrawn",
    "confirmed",
    "confirmation-pending",
    "confirmation-refused",
    "confirmation-impossible",
    "check-failed",
    "audit-unavailable",
]

State = Literal["ok", "error", "refused", "cancelled", "unknown"]

Verdict = Literal["grant", "refuse"]

EVENTS: Final[Mapping[Event, str]] = MappingProxyType(
    {
        "shard-opened": "a process began a chain of its own; always the first entry of a shard, and only there",
        "log-pruned": "entries past their retention were removed, up to and including the one that is named",
        "gateway-started": "a process began to serve",
        "gateway-stopped": "a process ended in order",
        "config-published": "a revision of documents and policies came into force",
        "key-rotated": "anchors are signed with another key from here on",
        "call-decided": "a call was refused or held, and did not run",
        "call-started": "a call that may change something is about to run",
        "call-settled": "a call ended, and its outcome is known",
        "call-unknown": "a call was cut off after it started; nobody saw how it ended",
        "call-replayed": "a call was sent again with its key; the first one, which is named, was told again",
        "approval-requested": "a held call asks people for a decision",
        "approval-granted": "an approver said yes; `gate.entries` tells who, and what was shown",
        "approval-refused": "an approver said no",
        "approval-expired": "nobody decided in time",
        "approval-used": "an approved call ran; the approval is used up",
        "approval-returned": "an approval was used by a call that did not run after all; it can be used again",
        "approval-voided": "an approval no longer fits: policy, definition, rights or arguments have changed",
        "approval-withdrawn": "whoever asked took the call back before it ran",
        "quarantine-added": "somebody stopped a tool, a principal or an upstream",
        "quarantine-lifted": "a quarantine was lifted, or ended by itself",
        "token-revoked": "a credential is accepted no more",
        "token-restored": "a revocation was taken back",
        "definition-changed": "an upstream's tool is no longer what was looked at, and is withheld",
        "definition-restored": "a withheld tool is again what was looked at, and is served",
    }
)

REASONS: Final[Mapping[Reason, str]] = MappingProxyType(
    {
        "permitted": "a policy row permits the call, and no gate rule is about it",
        "not-permitted": "no policy row permits the call, or one forbids it",
        "not-in-audience": "the caller does not belong to the audience of the catalogue",
        "unknown-tool": "the catalogue has no tool of that name for this caller",
        "arguments-invalid": "the arguments do not satisfy the input schema",
        "tier-refused": "the tier of the tool is not served in the catalogue",
        "not-in-service": "the tool is a draft, retired or withdrawn",
        "rule-allowed": "gate rules are about the call, and all let it through",
        "rule-held": "a gate rule holds the call until people decide",
        "rule-denied": "a gate rule denies the call",
        "rule-observed": "a rule in observe mode would have held or denied the call; it went through",
        "window-closed": "a rule lets the call through at other times only",
        "flow-blocked": "what the turn has seen must not flow into this tool",
        "loop-stopped": "the same call was made too often in its turn",
        "budget-spent": "the turn has used up its calls or bytes",
        "rate-exceeded": "too many calls in too short a time",
        "quota-exceeded": "the quota of its period is used up",
        "quarantined": "the tool, the principal or the upstream is in quarantine",
        "definition-changed": "the upstream's definition of the tool is not the one that was looked at",
        "approval-approved": "people approved this very call",
        "approval-pending": "people have not decided yet",
        "approval-mismatch": "the approval is for another call, definition, policy or principal",
        "approval-expired": "the approval or its request is past its end",
        "approval-refused": "people refused the call",
        "approval-withdrawn": "the caller took the call back while people were asked",
        "confirmed": "whoever called confirmed this very call; nobody else looked at it",
        "confirmation-pending": "whoever called has not answered yet",
        "confirmation-refused": "whoever called did not confirm the call",
        "confirmation-impossible": "the call has to be confirmed, and its client cannot be asked",
        "check-failed": "a check broke, and what is not checked is denied",
        "audit-unavailable": "this log could not be written, and what cannot be recorded does not run",
    }
)
