"""The risk table: every kind of finding with its weight and a sentence, in one place for security reviewers.

The risk of a plan is the highest weight of its findings. `weakened_controls` and `plan` produce the findings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from gateway.registries import Position

Weight = Literal["low", "medium", "high"]
WEIGHTS: Final[tuple[Weight, ...]] = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Risk:
    """A row of the table. `words` are shown beside the change: what it means, not what was edited."""

    weight: Weight
    words: str


RISKS: Final[Mapping[str, Risk]] = {
    # Any change, and the access of callers after it.
    "changed": Risk("low", "something changes"),
    "access-gained": Risk("medium", "a caller can call a tool that it could not call"),
    "access-seen": Risk("low", "a caller sees a tool that it did not see"),
    "access-lost": Risk("low", "a caller can no longer see or call a tool"),
    "other-environment": Risk("medium", "applies in another environment: plan that one, too"),
    # Gate rules.
    "gate-removed": Risk("high", "a control disappears"),
    "idle-gate-removed": Risk("low", "a rule that decided nothing disappears"),
    "gate-not-enforced": Risk("high", "a control no longer decides"),
    "gate-not-observed": Risk("low", "a rule that only observed is switched off"),
    "gate-escaped": Risk("high", "calls escape a control"),
    "gate-condition": Risk("high", "the control applies to other calls; which ones is not known"),
    "gate-check": Risk("high", "the control checks something else"),
    "approval-count": Risk("high", "fewer people must agree"),
    "approvers-widened": Risk("high", "more people can approve"),
    "approval-reuse": Risk("medium", "one approval counts for longer"),
    "approval-answer": Risk("medium", "another answer counts as an approval"),
    "approval-blind": Risk("medium", "approvers see less of the call"),
    "limit-raised": Risk("medium", "more calls pass"),
    "window-widened": Risk("medium", "calls pass at more hours"),
    "refusal-softened": Risk("medium", "calls are held where they were denied"),
    # Pipelines.
    "pipeline-without-gates": Risk("high", "gate rules are no longer evaluated"),
    "pipeline-without-redact": Risk("high", "results are no longer masked"),
    "pipeline-without-timeout": Risk("medium", "calls may hang"),
    "pipeline-without-stage": Risk("medium", "a stage disappears"),
    "pipeline-options": Risk("medium", "a stage works differently"),
    "timeout-raised": Risk("low", "calls may take longer"),
    "refuses-dropped": Risk("high", "the pipeline accepts tools that it refused"),
    # Trust.
    "tier-rank-lowered": Risk("high", "the tier counts as more trusted"),
    "tier-callable": Risk("high", "tools of the tier can be called"),
    "tier-may-be-trusted": Risk("high", "tools of the tier may be rendered as trusted"),
    "tier-unpinned": Risk("high", "imports of the tier need no pin"),
    "tier-review-relaxed": Risk("medium", "reviews count for longer"),
    "tier-forbids-less": Risk("high", "the tier forbids less"),
    "tier-adds-less": Risk("medium", "tools of the tier carry fewer flags"),
    "tier-origin": Risk("medium", "results count as coming from a more trusted origin"),
    "flag-implies-less": Risk("medium", "the flag implies fewer other flags"),
    "flag-egress": Risk("high", "can now carry data out"),
    "flag-destructive": Risk("high", "can now destroy something"),
    "flag-private-data": Risk("high", "now returns private data"),
    "flag-added": Risk("medium", "can do more than before"),
    "flag-removed": Risk("medium", "rules about the flag no longer apply"),
    "effects-unknown": Risk("medium", "its effects are no longer declared: the worst is assumed"),
    "effects-declared": Risk("medium", "its effects are declared: the worst is no longer assumed"),
    "tool-unknown": Risk("medium", "a new tool whose effects are unknown"),
    "tool-more-trusted": Risk("high", "moves to a more trusted tier"),
    "result-trusted": Risk("high", "results are rendered as trusted"),
    "tool-hazardous": Risk("medium", "a new tool with a grave flag"),
    "tool-callable": Risk("medium", "can be called again"),
    "tool-revived": Risk("medium", "is in use again"),
    "network-widened": Risk("high", "may now reach into a private network"),
    "tool-backend": Risk("medium", "something else runs when it is called"),
    "tool-retried": Risk("medium", "failed calls may be repeated"),
    "tool-input": Risk("low", "takes other arguments"),
    "tool-described": Risk("low", "models read another description"),
    # Catalogues.
    "combination-allowed": Risk("high", "a forbidden combination is allowed"),
    "waiver-added": Risk("high", "an exception from a rule"),
    "waiver-prolonged": Risk("high", "an exception lasts longer"),
    "exclude-removed": Risk("medium", "tools are no longer excluded"),
    "audience-widened": Risk("medium", "more people may connect"),
    "envelope-dropped": Risk("high", "results are sent without their trust envelope"),
    "json-unmarked": Risk("medium", "JSON of results is sent outside of the envelope"),
    "protocol-added": Risk("low", "served over another protocol"),
    # Results and records.
    "redact-removed": Risk("high", "a value is no longer masked"),
    "flow-widened": Risk("high", "results may flow further"),
    "result-reclassified": Risk("high", "results are of a class that guards them less"),
    "sensitivity-lowered": Risk("medium", "a leak counts as less harmful"),
    "queries-widened": Risk("low", "results allow more queries"),
    "capture-widened": Risk("high", "telemetry carries more of a call's content"),
    "refusals-sampled": Risk("medium", "refusals may be missing from traces"),
    "telemetry-reduced": Risk("medium", "less is observed"),
    "telemetry-redirected": Risk("medium", "telemetry goes somewhere else"),
    "audit-shortened": Risk("medium", "records are retained for a shorter time"),
    "audit-removed": Risk("high", "the integrity of the decision log can no longer be proved"),
    "audit-key-removed": Risk("medium", "hashes of contents cannot be compared any more"),
    "audit-key-changed": Risk("low", "new hashes of contents cannot be compared with old ones"),
    "anchors-removed": Risk("high", "a truncated or rewritten log is no longer detected"),
    "anchors-changed": Risk("medium", "anchors go elsewhere, or are signed with another key"),
    "anchors-rarer": Risk("low", "entries wait longer for an anchor"),
    "storage-changed": Risk("medium", "records are stored elsewhere"),
    # Names.
    "honour-tool-widened": Risk("high", "a tool may take a name by its own setting"),
    "collisions-relaxed": Risk("medium", "names may clash without an error"),
    # Identity of callers.
    "identity-added": Risk("high", "another way to authenticate"),
    "identity-changed": Risk("high", "other proofs of identity are accepted"),
    "algorithm-added": Risk("high", "another signature algorithm is accepted"),
    "clock-skew-raised": Risk("medium", "expired tokens are accepted for longer"),
    "trace-joined": Risk("medium", "callers may write into any trace"),
    "token-added": Risk("high", "another token is accepted"),
    "token-prolonged": Risk("medium", "a token is accepted for longer"),
    "role-granted": Risk("high", "a caller is given another role"),
    # The gateway and its upstreams.
    "webhook-added": Risk("medium", "another system is notified of approvals"),
    "webhook-changed": Risk("medium", "notifications of approvals go elsewhere, or are about other events"),
    "webhook-removed": Risk("medium", "a system is no longer notified of approvals"),
    "default-tier": Risk("high", "tools without a tier of their own count as more trusted"),
    "access-review-relaxed": Risk("medium", "owners look at access less often"),
    "attestation-removed": Risk("medium", "an owner no longer attests the access to what it owns"),
    "tests-not-run": Risk("medium", "a reload no longer runs the policy tests"),
    "import-unpinned": Risk("high", "changed imports are served without a review"),
    "results-unchecked": Risk("low", "results of imported tools are not checked against their output schema"),
    "import-widened": Risk("medium", "more tools may be imported"),
    "definition-turned": Risk("high", "an upstream's definition could be turned against its callers"),
    "definition-changed": Risk("medium", "an upstream defines something else"),
    "definition-edited": Risk("low", "an upstream's definition reads differently"),
    "upstream-added": Risk("medium", "another server provides tools"),
    "upstream-changed": Risk("medium", "another server or credential is used"),
    # Policies.
    "deny-removed": Risk("high", "a denial disappears"),
    "deny-narrowed": Risk("high", "a denial covers less"),
    "allow-added": Risk("medium", "wider reach"),
    "actions-widened": Risk("medium", "wider reach"),
    "ceiling-raised": Risk("medium", "wider reach"),
    "authority-granted": Risk("high", "may decide about others' calls or the gateway"),
    "role-widened": Risk("medium", "holds another role"),
    "deny-role-left": Risk("high", "leaves a role that is denied something"),
    "row-prolonged": Risk("medium", "a row grants for longer"),
    "deny-ends": Risk("high", "a denial ends by itself"),
    "grant-policy-added": Risk("high", "callers can get other roles for a while"),
    "grant-widened": Risk("high", "more roles can be granted, or more callers can get them"),
    "grant-approvers-widened": Risk("high", "more people can approve grants"),
    "grant-longer": Risk("medium", "grants last longer, or more of them are in force at once"),
    "group-changed": Risk("medium", "rows about the group cover other tools"),
    "test-removed": Risk("medium", "an expectation is no longer tested"),
    "test-changed": Risk("low", "another answer is expected"),
    "tests-fail": Risk("high", "policy tests fail"),
    # Recorded calls, decided by both sides.
    "replay-passed": Risk("high", "recorded calls pass that were refused or held"),
    "replay-stopped": Risk("medium", "recorded calls that ran are refused or held"),
    "replay-incomplete": Risk("low", "some recorded calls cannot be replayed"),
}


@dataclass(frozen=True, slots=True)
class RiskFinding:
    """A finding for a reviewer. `about` names a document or a policy row, `path` a field of it, `note` the details."""

    code: str
    about: str
    path: str = ""
    note: str = ""
    position: Position | None = None

    @property
    def weight(self) -> Weight:
        return RISKS[self.code].weight

    @property
    def words(self) -> str:
        words = RISKS[self.code].words
        return f"{words}: {self.note}" if self.note else words


def highest_risk(findings: Iterable[RiskFinding]) -> Weight | None:
    """Return the highest risk of the findings; `None` if there are none."""
    return max((found.weight for found in findings), key=WEIGHTS.index, default=None)


def is_accepted(risk: Weight | None, accepted: Weight | None) -> bool:
    return risk is None or (accepted is not None and WEIGHTS.index(risk) <= WEIGHTS.index(accepted))
