"""The meaning of policies in plain Python: every row is examined, nothing is indexed, cached or clever.

The authoriser is compared with this specification, which shares no code with it beyond the data it reads.
"""

import re
from collections.abc import Iterable, Mapping

from gateway.policy.authoriser import AccessRequest
from gateway.policy.casbin.policy_files import PermissionRow, PolicySet, RoleLink
from gateway.registries.diagnostics import Position

ACTIONS = {"discover", "invoke", "read", "approve", "observe", "administer"}
NAME = r"[A-Za-z0-9_.-]{1,128}"
SUBJECT = r"(user|agent|service|role):[A-Za-z0-9_.@+=/:~|-]{1,256}"
OBJECT = rf"config|(tool|class|catalogue|approval|prompt|resource):{NAME}"


class ReferenceAuthoriser:
    def __init__(self, policies: PolicySet, ranks: Mapping[str, int]) -> None:
        self.policies = policies
        self.ranks = ranks

    def decide(self, request: AccessRequest) -> tuple[bool, Position | None]:
        """The verdict and the row that explains it: the first deny that matches, else the first allow."""
        if not self.is_well_formed(request):
            return False, None
        allows, denies = [], []
        for row in self.policies.permissions:
            if self.row_matches(row, request):
                if row.effect.text == "deny":
                    denies.append(row)
                if row.effect.text == "allow":
                    allows.append(row)
        if denies:
            return False, first(denies)
        if allows:
            return True, first(allows)
        return False, None

    def is_well_formed(self, request: AccessRequest) -> bool:
        for name in request.names:
            if not re.fullmatch(SUBJECT, name):
                return False
        if not re.fullmatch(NAME, request.catalogue):
            return False
        if not re.fullmatch(OBJECT, request.object):
            return False
        if request.action not in ACTIONS:
            return False
        return request.tier in self.ranks

    def row_matches(self, row: PermissionRow, request: AccessRequest) -> bool:
        if row.subject.text not in closure(request.names, self.policies.members):
            return False
        if not glob(request.catalogue, row.catalogue.text):
            return False
        if request.action not in row.actions.text.split("|"):
            return False
        if row.tier.text not in self.ranks:
            return False
        if self.ranks[request.tier] > self.ranks[row.tier.text]:
            return False
        return any(glob(name, row.object.text) for name in closure([request.object], self.policies.objects))


def closure(names: Iterable[str], links: Iterable[RoleLink]) -> set[str]:
    reached = set(names)
    grew = True
    while grew:
        grew = False
        for link in links:
            if link.member.text in reached and link.group.text not in reached:
                reached.add(link.group.text)
                grew = True
    return reached


def glob(name: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), name) is not None


def first(rows: list[PermissionRow]) -> Position:
    return min(Position(row.subject.position.file, row.subject.position.line) for row in rows)
