"""The memory of a turn that is only told about: what it has seen, and which calls it has made before the one asked."""

from gateway.access import Access
from gateway.core.exact_json import fingerprint_of
from gateway.governance.cases import PolicyCase
from gateway.governance.memory import TurnMemory


def remembered(access: Access, case: PolicyCase) -> TurnMemory:
    """Everything a case says of its turn. Earlier calls were let through, and bring what their tools bring."""
    memory = TurnMemory()
    memory.flags.update(case.saw)
    memory.classes.update(case.read)
    for earlier in sorted(case.calls, key=lambda call: call.ago, reverse=True):
        tool = access.snapshot.tool_in(case.catalogue, earlier.tool)
        brought = access.brings(tool) if tool is not None else access.brought_by(earlier.tool)
        fingerprint = fingerprint_of(earlier.tool, earlier.args)
        for _ in range(earlier.times):
            memory.reserves(fingerprint)
            memory.notes(brought, "allow", at=case.at - earlier.ago)
        memory.receives(earlier.bytes * earlier.times)
    return memory
