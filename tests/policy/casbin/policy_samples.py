"""Policies as tests write them, and random ones."""

from collections.abc import Sequence
from random import Random

from gateway.policy.authoriser import AccessRequest
from gateway.policy.casbin.policy_files import PermissionRow, PolicyCell, PolicySet, RoleLink
from gateway.registries.diagnostics import Position

RANKS = {"internal": 0, "partner": 1, "vendor": 1, "quarantine": 2}

SUBJECTS = ["user:ana", "user:bo", "agent:bot", "role:a", "role:b", "role:c", "role:d"]
CATALOGUES = ["eng", "ops", "eng-x"]
CATALOGUE_PATTERNS = ["*", "*", "eng", "ops", "eng*", "*x", "e*g", "*n*"]
OBJECTS = ["tool:pay_in", "tool:pay_out", "tool:log", "tool:pay", "class:pay", "class:money", "catalogue:eng", "config"]
OBJECT_PATTERNS = [
    *OBJECTS,
    *(
        "tool:*",
        "tool:pay_*",
        "tool:*_out",
        "tool:p*o*t",
        "tool:*y*",
        "class:*",
        "class:*y",
        "catalogue:*",
        "tool:*pay",
    ),
]
ACTIONS = ["discover", "invoke", "read", "approve", "observe", "administer"]
CEILINGS = ["internal", "partner", "vendor", "quarantine", "quarantine", "quarantine"]
STRANGE = ["", "*", "tool:", "nobody", "user:\n", "tool:pay_out\n", "TOOL:log", "ａ", "role:zzz", "x" * 300]


def permission(text: str, *, line: int = 1, file: str = "policy.csv") -> PermissionRow:
    return PermissionRow(*cells(text, line=line, file=file))


def link(text: str, *, line: int = 1, file: str = "roles.csv") -> RoleLink:
    return RoleLink(*cells(text, line=line, file=file))


def cells(text: str, *, line: int, file: str) -> list[PolicyCell]:
    return [PolicyCell(part.strip(), Position(file, line, number)) for number, part in enumerate(text.split(","), 2)]


def policy_set(rows: Sequence[str] = (), members: Sequence[str] = (), objects: Sequence[str] = ()) -> PolicySet:
    """Lines are counted from 1 in each part."""
    return PolicySet(
        permissions=tuple(permission(text, line=line) for line, text in enumerate(rows, 1)),
        members=tuple(link(text, line=line) for line, text in enumerate(members, 1)),
        objects=tuple(link(text, line=line, file="objects.csv") for line, text in enumerate(objects, 1)),
    )


def request(
    *names: str, catalogue: str = "eng", object: str = "tool:log", action: str = "invoke", tier: str = "internal"
) -> AccessRequest:
    return AccessRequest(frozenset(names), catalogue, object, action, tier)


def random_row(random: Random) -> str:
    actions = "|".join(random.sample(ACTIONS, random.choice([1, 2, 3, 5])))
    effect = random.choice(["allow", "allow", "allow", "deny"])
    columns = [random.choice(options) for options in (SUBJECTS, CATALOGUE_PATTERNS, OBJECT_PATTERNS)]
    return ", ".join([*columns, actions, random.choice(CEILINGS), effect])


def random_policies(random: Random) -> PolicySet:
    """Policies without errors: links go one way along the list, so there are no cycles."""
    rows = [random_row(random) for _ in range(random.randrange(25))]
    members = []
    for _ in range(random.randrange(7)):
        low, high = sorted(random.sample(range(len(SUBJECTS)), 2))
        if SUBJECTS[high].startswith("role:"):
            members.append(f"{SUBJECTS[low]}, {SUBJECTS[high]}")
    objects = random.sample(
        ["tool:pay_in, class:pay", "tool:pay_out, class:pay", "class:pay, class:money", "tool:log, class:money"],
        random.randrange(5),
    )
    policies = policy_set(rows, members, objects)
    shuffled = random.sample(policies.permissions, len(policies.permissions))
    return PolicySet(tuple(shuffled), policies.members, policies.objects)


def random_request(random: Random) -> AccessRequest:
    names = frozenset(random.sample(SUBJECTS, random.choice([1, 2, 3, 4])))
    parts = [random.choice(options) for options in (CATALOGUES, OBJECTS, ACTIONS, list(RANKS))]
    if random.random() < 0.05:
        spoilt = random.randrange(5)
        if spoilt == 4:
            names |= {random.choice(STRANGE)}
        else:
            parts[spoilt] = random.choice(STRANGE)
    return AccessRequest(names, *parts)
