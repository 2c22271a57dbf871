"""Whether somebody could decide about the calls that a project holds. REST is always served, so a channel is a person
whom a provider in use lets in, who is or holds an approver's name, and who is not the only one that calls."""

from dataclasses import replace

from gateway.assembly import Assembled
from gateway.config.linking.people import everybody_at
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.rules import GateRule
from gateway.snapshot import Snapshot


def unreachable_approvals(assembled: Assembled) -> tuple[Diagnostic, ...]:
    """Enforced rules whose calls would wait in vain, as errors: with one of them nothing starts."""
    if assembled.access is None:
        return ()
    enforced = {rule.position for rule in _asking(assembled.access.snapshot)}
    return tuple(
        replace(found, severity="error")
        for found in assembled.diagnostics
        if found.code == "nobody-approves" and found.position in enforced
    )


def approvals_in_vain(snapshot: Snapshot) -> str | None:
    """A warning where everybody is one principal, which is for trying things out: what is held there stays held."""
    everybody, rules = everybody_at(snapshot), _asking(snapshot)
    if everybody is None or not rules:
        return None
    names = ", ".join(rule.name for rule in rules)
    return f"everybody is {everybody}, and nobody approves their own calls: what {names} holds is not let through"


def _asking(snapshot: Snapshot) -> list[GateRule]:
    return [rule for rule in snapshot.gates.values() if rule.approval is not None and rule.mode == "enforce"]
