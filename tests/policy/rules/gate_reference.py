"""The meaning of a whole decision in plain Python: the policy by its reference, then every gate rule, one by one.

Rules are written as what they mean, not as expressions, so the gateway's own evaluation is not used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.policy.authoriser import AccessRequest
from tests.policy.casbin.reference import ReferenceAuthoriser, glob


@dataclass(frozen=True)
class ReferenceTurnState:
    """What the turn has seen: flags, classes, tools that ran, repetitions of this call, total calls and bytes."""

    flags: frozenset[str]
    classes: frozenset[str]
    tools: tuple[str, ...]
    same: int
    calls: int
    bytes: int


@dataclass(frozen=True)
class ReferenceRule:
    """One rule: `when` and `check` are a word and a value."""

    pattern: str
    mode: str
    when: tuple[str, Any] | None
    check: tuple[str, Any]


@dataclass(frozen=True)
class Reference:
    authoriser: ReferenceAuthoriser
    catalogue: str
    tool: str
    tier: str
    flags: frozenset[str]
    args: dict[str, int]
    names: frozenset[str]
    memory: ReferenceTurnState

    def may(self, action: str, object: str) -> bool:
        return self.authoriser.decide(AccessRequest(self.names, self.catalogue, object, action, self.tier))[0]

    def decision(self, rules: Sequence[ReferenceRule], flows: Sequence[tuple[str, str | None, frozenset[str]]]) -> str:
        """`flows` are classes with their ceiling and the flags they block. The policy has already been decided."""
        verdicts = [self.verdict_of(rule) for rule in rules if rule.mode == "enforce" and glob(self.tool, rule.pattern)]
        verdicts += ["deny" for flow in flows if self.is_blocked(*flow)]
        for grave in ("deny", "hold"):
            if grave in verdicts:
                return grave
        return "allow"

    def is_blocked(self, artifact: str, ceiling: str | None, blocked_by: frozenset[str]) -> bool:
        if artifact not in self.memory.classes:
            return False
        ranks = self.authoriser.ranks
        return (ceiling is not None and ranks[self.tier] > ranks[ceiling]) or bool(self.flags & blocked_by)

    def verdict_of(self, rule: ReferenceRule) -> str:
        if rule.when is not None and not self.applies(*rule.when):
            return "allow"
        kind, value = rule.check
        match kind:
            case "approval":
                return "hold"
            case "permission":
                return "allow" if self.may("invoke", value) else "deny"
            case "less":
                return "allow" if self.args["n"] < value else "deny"
            case "unknown":
                return "deny"
            case "loop":
                return "deny" if self.memory.same >= value else "allow"
            case "calls":
                return "hold" if self.memory.calls >= value else "allow"
            case "bytes":
                return "deny" if self.memory.bytes >= value else "allow"
        return "allow"

    def applies(self, kind: str, value: Any) -> bool:
        match kind:
            case "saw":
                return value in self.memory.flags
            case "more":
                return bool(self.args["n"] > value)
            case "called":
                return value in self.memory.tools
            case "read":
                return value in self.memory.classes
        return True  # unknown words apply
