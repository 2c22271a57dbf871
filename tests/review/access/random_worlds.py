"""Random snapshots with policies, and what every caller can do by asking about one pair after the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

from gateway.model.caller import Principal
from gateway.policy.access import Access
from gateway.policy.access_answer import AccessQuestion
from gateway.policy.authoriser import AccessDecision
from gateway.policy.casbin.enforcer import CasbinAuthoriser
from gateway.policy.casbin.lint import KnownNames
from gateway.policy.casbin.policy_files import PermissionRow, PolicyCell, PolicySet, RoleLink
from gateway.policy.rules import gate_checks as checks
from gateway.policy.rules.conditions import Condition, compile_condition
from gateway.policy.rules.gate_rules import GateRule
from gateway.registries.diagnostics import Position
from gateway.registries.effective_trust import EffectiveTrust, Tier
from gateway.registries.snapshot import (
    CONTENT,
    ArtifactClass,
    Catalogue,
    DeclaredDefinition,
    DeclaredDocument,
    DeclaredTool,
    Deprecation,
    Snapshot,
)
from gateway.registries.tool_selection import Selector
from gateway.review.access.access_review import list_policy_rows
from gateway.review.plan.policy_changes import GroupingRow, PolicyRow

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HERE = Position("a.yaml", 1)
ROLES = ("role:a", "role:b", "role:c", "role:d")
SUBJECTS = ("user:ana", "user:bo", "agent:bot", "agent:batch")
CALLERS = (*SUBJECTS, *ROLES)
TOOLS = ("log_read", "log_wipe", "pay_in", "pay_out", "mail")
CLASSES = ("record", "mail")
QUERIES = ("artifact_grep", "artifact_head")
OBJECTS = (
    *("tool:*", "tool:*", "tool:log_*", "tool:pay_in", "tool:pay_*", "tool:mail"),
    *("class:record", "class:mail", "class:money", "class:*", "tool:artifact_*", "tool:artifact_grep"),
    *("tool:artifact_content", "prompt:*", "prompt:wiki.review", "resource:wiki.pages", "config"),
)
ACTIONS = ("discover", "invoke", "read", "approve", "observe", "administer")
OWNERS = ("team-a", "team-b")
EMPTY: dict[str, Any] = {}
Rows = list[PolicyRow | GroupingRow]
Answer = tuple[str, tuple[str, int] | None]
"""An action and the place of the row that decides it."""


@dataclass(frozen=True)
class World:
    """A random project: its access, the rows, and the policies without what artifacts imply."""

    access: Access
    policies: PolicySet

    @property
    def rows(self) -> Rows:
        return list_policy_rows(self.policies, NOW)

    @property
    def snapshot(self) -> Snapshot:
        return self.access.snapshot


def random_world(random: Random) -> World:
    tiers = {
        "internal": Tier("internal", 0, "first-party"),
        "partner": Tier("partner", random.choice([0, 10, 90]), "third-party-private"),
        "quarantine": Tier("quarantine", 90, "third-party-public", callable=random.random() < 0.3),
    }
    tools = {name: _tool(random, name, tiers) for name in TOOLS if random.random() < 0.9}
    offers = {each.object: each for each in (_offer(random, kind, tiers) for kind in ("prompt", "resource"))}
    policies = _policies(random)
    gates = {rule.name: rule for rule in (_rule(random, number) for number in range(random.randrange(4)))}
    snapshot = Snapshot(
        "random",
        _documents(random),
        flags=EMPTY,
        tiers=tiers,
        artifacts={name: ArtifactClass(name, object, HERE) for name in CLASSES if random.random() < 0.8},
        collision_policies=EMPTY,
        gates=gates,
        pipelines=EMPTY,
        tools=tools,
        catalogues={name: _catalogue(random, name, tools, offers) for name in ("desk", "ops")},
        subjects=frozenset({"agent:bot"}),
        offers=offers,
        queries={name: _queries(random) for name in (*CLASSES, "text")},
    )
    return with_policies(snapshot, policies)


def _queries(random: Random) -> dict[str, dict[str, Any]]:
    return {name: {"type": "object"} for name in QUERIES[: random.randrange(3)]}


def with_policies(snapshot: Snapshot, policies: PolicySet) -> World:
    """Build the access as a project does: a tool belongs to the class of its artifacts."""
    implied = [
        RoleLink(_cell(tool.object), _cell(f"class:{tool.artifact}"))
        for tool in snapshot.tools.values()
        if tool.artifact in snapshot.artifacts
    ]
    groups = {link.group.text.removeprefix("class:") for link in policies.objects}
    known = KnownNames(
        tools=frozenset(snapshot.tools) | snapshot.query_names,
        classes=frozenset(snapshot.artifacts) | groups,
        catalogues=frozenset(snapshot.catalogues),
        tiers=snapshot.ranks,
        prompts=frozenset(each.name for each in snapshot.offers.values() if each.kind == "prompt"),
        resources=frozenset(each.name for each in snapshot.offers.values() if each.kind == "resource"),
    )
    complete = replace(policies, objects=(*policies.objects, *implied))
    return World(Access(snapshot, CasbinAuthoriser(complete, ranks=snapshot.ranks, known=known)), policies)


def _tool(random: Random, name: str, tiers: dict[str, Tier]) -> DeclaredTool:
    tier = tiers[random.choice(["internal", "internal", "partner", "quarantine"])]
    trust = EffectiveTrust(tier, frozenset(), False, tier.callable and random.random() < 0.9)
    lifecycle: Any = random.choice(["active", "active", "active", "deprecated", "retired", "draft"])
    last = NOW.date() + timedelta(days=random.choice([-1, 0, 1]))
    return DeclaredTool(
        name,
        "Does it.",
        trust,
        "http",
        HERE,
        owner=random.choice([*OWNERS, None]),
        lifecycle=lifecycle,
        deprecation=Deprecation(date(2026, 1, 1), last) if lifecycle == "deprecated" else None,
        artifact=random.choice(["text", *CLASSES]),
    )


def _offer(random: Random, kind: Any, tiers: dict[str, Tier]) -> DeclaredDefinition:
    tier = random.choice(list(tiers.values()))
    trust = EffectiveTrust(tier, frozenset(), False, tier.callable)
    name = {"prompt": "wiki.review", "resource": "wiki.pages"}[kind]
    return DeclaredDefinition(kind, name, "wiki", name, trust, HERE, uris=("wiki://*",))


def _catalogue(
    random: Random, name: str, tools: dict[str, DeclaredTool], offers: dict[str, DeclaredDefinition]
) -> Catalogue:
    named = {each: each for each in tools if random.random() < 0.8}
    if "mail" in tools and random.random() < 0.3:
        named["send_mail"] = "mail"
    listed = list(named)
    return Catalogue(
        name,
        frozenset(random.sample(CALLERS, random.randrange(1, 5))),
        named,
        "standard",
        f"/{name}",
        HERE,
        hidden=frozenset(random.sample(listed, random.randrange(min(3, len(listed) + 1)))),
        prompts={"review": "prompt:wiki.review"} if random.random() < 0.7 else {},
        resources=("resource:wiki.pages",) if random.random() < 0.7 else (),
    )


def _rule(random: Random, number: int) -> GateRule:
    check: Any = random.choice(
        [
            checks.PermissionCheck("invoke", random.choice(["class:money", "tool:pay_in", "class:record"])),
            checks.PermissionCheck("read", random.choice(["class:money", "tool:artifact_grep"])),
            checks.ApprovalCheck(("role:a",), "look at it"),
            checks.RateCheck(1, timedelta(minutes=1)),
            checks.ArgumentsCheck(_condition("args.n < 5"), "too much"),
        ]
    )
    when = random.choice([None, None, _condition("args.n > 5")])
    mode: Any = random.choice(["enforce", "enforce", "observe", "disabled"])
    match = Selector(tools=(random.choice(["*", "log_*", "pay_in", "mail"]),))
    return GateRule(f"r{number}", match, check, HERE, when, mode)


def _condition(source: str) -> Condition:
    compiled, problems = compile_condition(source)
    assert compiled is not None, problems
    return compiled


def _policies(random: Random) -> PolicySet:
    rows = []
    for line in range(1, random.randrange(4, 16)):
        texts = (
            random.choice(CALLERS),
            random.choice(["*", "*", "desk", "ops", "d*"]),
            random.choice(OBJECTS),
            "|".join(random.sample(ACTIONS, random.choice([1, 2, 3]))),
            random.choice(["internal", "partner", "quarantine", "quarantine"]),
            random.choice(["allow", "allow", "allow", "deny"]),
        )
        rows.append(
            PermissionRow(*(PolicyCell(text, Position("policy.csv", line, at)) for at, text in enumerate(texts)))
        )
    members = []
    for _ in range(random.randrange(7)):
        member, role = random.choice(CALLERS), random.choice(ROLES)
        if member < role or not member.startswith("role:"):
            members.append(RoleLink(_cell(member), _cell(role)))
    objects = [("tool:pay_in", "class:money"), ("class:record", "class:money"), ("prompt:wiki.review", "class:money")]
    groups = random.sample(objects, random.randrange(4))
    return PolicySet(tuple(rows), tuple(members), tuple(RoleLink(_cell(one), _cell(other)) for one, other in groups))


def _documents(random: Random) -> dict[str, dict[str, DeclaredDocument]]:
    roles = random.sample(ROLES, random.randrange(3))
    owners = {"agent:bot": "team-a"} if random.random() < 0.5 else {}
    spec = {"type": "token", "tokens": [{"subject": "agent:bot", "roles": roles}], "owners": owners}
    documents = {
        "IdentityProvider": {"bots": DeclaredDocument("IdentityProvider", "bots", "team-a", HERE, {"spec": spec})},
        "Upstream": {"wiki": DeclaredDocument("Upstream", "wiki", "team-b", HERE, {"spec": {}})},
        "Gateway": {"random": DeclaredDocument("Gateway", "random", "team-a", HERE, {"spec": {}})},
    }
    return documents


def _cell(text: str) -> PolicyCell:
    return PolicyCell(text, HERE)


def ask_about_pair(world: World, principal: Principal, catalogue: str, object: str) -> set[Answer]:
    """Return what a caller can do with an object of a catalogue, asked as calls, lists and approvals ask."""
    access = world.access
    if object in world.snapshot.offers:
        return set(_ask_about_offer(world, principal, catalogue, object))
    tool = world.snapshot.tools[object.removeprefix("tool:")]
    names = [name for name, each in world.snapshot.catalogues[catalogue].tools.items() if each == tool.name]
    found: set[Answer] = set()
    if not set(names).isdisjoint(name for name, _ in access.list_tools(principal, catalogue, at=NOW)):
        found |= _answer("see", access.decide_discovery(principal, catalogue, tool))
    call = access.decide_call(AccessQuestion(principal, catalogue, names[0], NOW, {"n": 1}))
    if call.decision != "deny":
        found |= _answer("call", access.decide_action(principal, "invoke", catalogue, tool))
    queries = (CONTENT, *sorted(world.snapshot.queries.get(tool.artifact, {})))
    reads = {query: _ask_reading(world, principal, catalogue, names[0], query) for query in queries}
    if None not in reads.values():
        found.add(("read", reads[CONTENT]))
    else:
        found |= {(f"read:{query}", place) for query, place in reads.items() if place is not None}
    return found | _answer("approve", access.decide_approval(principal, catalogue=catalogue, tool=tool.name))


def _ask_reading(
    world: World, principal: Principal, catalogue: str, advertised: str, query: str
) -> tuple[str, int] | None:
    asked = AccessQuestion(principal, catalogue, query, NOW, of=advertised)
    answer = world.access.decide_call(asked)
    if answer.steps[-1].name != "gates":  # the policy refused it; gate rules about queries are not access
        return None
    tool = world.snapshot.tool_in(catalogue, advertised)
    assert tool is not None
    row = world.access.reads(principal, catalogue, world.snapshot.query(query, tool)).row
    assert row is not None
    return row.file, row.line


def _ask_about_offer(world: World, principal: Principal, catalogue: str, object: str) -> Iterator[Answer]:
    offer, access = world.snapshot.offers[object], world.access
    if access.is_in_audience(principal, catalogue):
        decision = access.decide_definition(principal, catalogue=catalogue, offer=offer)
        yield from _answer("call" if offer.kind == "prompt" else "read", decision)
    yield from _answer("approve", access.decide_approval(principal, catalogue=catalogue, tool=object))


def ask_about_config(world: World, principal: Principal) -> set[str]:
    found = {"administer"} if world.access.can_administer(principal) else set()
    return found | ({"metrics"} if world.access.can_read_metrics(principal) else set())


def _answer(action: str, decision: AccessDecision) -> set[Answer]:
    if not decision.allowed:
        return set()
    assert decision.row is not None
    return {(action, (decision.row.file, decision.row.line))}


def objects_of(catalogue: Catalogue) -> Sequence[str]:
    tools = {f"tool:{identity}" for identity in catalogue.tools.values()}
    return sorted({*tools, *catalogue.prompts.values(), *catalogue.resources})
