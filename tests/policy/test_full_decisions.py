"""Complete decisions over random snapshots, policies, rules and turn states, against the reference with gates."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.model.caller import Principal
from gateway.policy.access import Access
from gateway.policy.access_answer import AccessQuestion
from gateway.policy.casbin.enforcer import CasbinAuthoriser
from gateway.policy.casbin.policy_files import PermissionRow, PolicyCell, PolicySet, RoleLink
from gateway.policy.rules import gate_checks as checks
from gateway.policy.rules.conditions import Condition, compile_condition
from gateway.policy.rules.gate_rules import SEVERITY, GateRule
from gateway.policy.rules.turn_state import Taint, TurnState
from gateway.registries.diagnostics import Position
from gateway.registries.effective_trust import EffectiveTrust, Tier
from gateway.registries.snapshot import ArtifactClass, Catalogue, DeclaredTool, Snapshot
from gateway.registries.tool_flags import Flag
from gateway.registries.tool_selection import Selector
from tests.policy.casbin.reference import ReferenceAuthoriser
from tests.policy.rules.gate_reference import Reference, ReferenceRule, ReferenceTurnState

NOW = datetime(2026, 11, 16, 10, tzinfo=UTC)
HERE = Position("a.yaml", 1)
TIERS = {
    "internal": Tier("internal", 0, "first-party"),
    "partner": Tier("partner", 10, "third-party-private"),
    "quarantine": Tier("quarantine", 90, "third-party-public", callable=False),
}
FLAGS = ["egress", "untrusted-output", "writes"]
CLASSES = ["mail", "record"]
TOOLS = ["log_read", "log_wipe", "pay_in"]
ROLES = ["role:a", "role:b"]
SUBJECTS = ["user:ana", "agent:bot"]
EMPTY: dict[str, Any] = {}

WHENS = st.one_of(
    st.none(),
    st.tuples(st.just("saw"), st.sampled_from(FLAGS)),
    st.tuples(st.just("more"), st.integers(0, 9)),
    st.tuples(st.just("called"), st.sampled_from(TOOLS)),
    st.tuples(st.just("read"), st.sampled_from(CLASSES)),
    st.just(("unknown", None)),
)
CHECKS = st.one_of(
    st.just(("approval", None)),
    st.tuples(st.just("permission"), st.sampled_from(["class:money", "tool:pay_in"])),
    st.tuples(st.just("less"), st.integers(0, 9)),
    st.just(("unknown", None)),
    st.tuples(st.just("loop"), st.integers(1, 3)),
    st.tuples(st.just("calls"), st.integers(1, 6)),
    st.tuples(st.just("bytes"), st.integers(1, 200)),
    st.just(("rate", None)),
)
meanings = st.lists(
    st.builds(
        ReferenceRule,
        st.sampled_from(["*", "log_*", "pay_in"]),
        st.sampled_from(["enforce", "enforce", "enforce", "observe", "disabled"]),
        WHENS,
        CHECKS,
    ),
    max_size=5,
)
flows = st.lists(
    st.tuples(
        st.sampled_from(CLASSES),
        st.none() | st.sampled_from(list(TIERS)),
        st.frozensets(st.sampled_from(FLAGS), max_size=1),
    ),
    max_size=2,
    unique_by=lambda flow: flow[0],
)
memories = st.builds(
    ReferenceTurnState,
    st.frozensets(st.sampled_from(FLAGS)),
    st.frozensets(st.sampled_from(CLASSES)),
    st.lists(st.sampled_from(TOOLS), max_size=3).map(tuple),
    st.integers(0, 3),
    st.integers(3, 7),
    st.integers(0, 300),
)
permissions = st.builds(
    lambda *texts: PermissionRow(*(PolicyCell(text, HERE) for text in texts)),
    st.sampled_from([*ROLES, *SUBJECTS]),
    st.sampled_from(["*", "desk"]),
    st.sampled_from(["tool:*", "tool:*", "tool:log_*", "tool:pay_in", "class:money"]),
    st.sampled_from(["invoke", "discover|invoke"]),
    st.sampled_from(list(TIERS)),
    st.sampled_from(["allow", "allow", "allow", "deny"]),
)


@dataclass(frozen=True)
class World:
    """One random question: everything that the gateway and the reference are asked about."""

    policy: PolicySet
    rules: list[ReferenceRule]
    flows: list[tuple[str, str | None, frozenset[str]]]
    tool: str
    tier: str
    flags: frozenset[str]
    principal: Principal
    n: int
    memory: ReferenceTurnState


WIDE = tuple(
    PermissionRow(*(PolicyCell(text, HERE) for text in (subject, "*", "tool:*", "invoke", "partner", "allow")))
    for subject in SUBJECTS
)
worlds = st.builds(
    World,
    st.tuples(st.sampled_from([(), WIDE, WIDE]), st.lists(permissions, max_size=5)).map(
        lambda rows: PolicySet(
            (*rows[0], *rows[1]),
            (RoleLink(PolicyCell("user:ana", HERE), PolicyCell("role:a", HERE)),),
            (RoleLink(PolicyCell("tool:pay_in", HERE), PolicyCell("class:money", HERE)),),
        )
    ),
    meanings,
    flows,
    st.sampled_from(TOOLS),
    st.sampled_from(["internal", "internal", "partner", "quarantine"]),
    st.frozensets(st.sampled_from(FLAGS), max_size=2),
    st.builds(Principal, st.sampled_from(SUBJECTS), st.frozensets(st.sampled_from(ROLES), max_size=2)),
    st.integers(0, 9),
    memories,
)


def condition(source: str) -> Condition:
    compiled, problems = compile_condition(source)
    assert compiled is not None, problems
    return compiled


def when_of(meaning: ReferenceRule) -> Condition | None:
    if meaning.when is None:
        return None
    kind, value = meaning.when
    sources = {
        "saw": f'turn.saw("{value}")',
        "more": f"args.n > {value}",
        "called": f'turn.calls.exists(c, c.tool == "{value}" && c.age < duration("1h"))',
        "read": f'"{value}" in turn.classes',
        "unknown": "args.missing > 1",
    }
    return condition(sources[kind])


def check_of(meaning: ReferenceRule) -> checks.GateCheck:
    kind, value = meaning.check
    match kind:
        case "approval":
            return checks.ApprovalCheck(("role:lead",), "look at it")
        case "permission":
            return checks.PermissionCheck("invoke", value)
        case "less":
            return checks.ArgumentsCheck(condition(f"args.n < {value}"), "too much")
        case "unknown":
            return checks.ArgumentsCheck(condition("args.missing < 1"), "missing")
        case "loop":
            return checks.LoopCheck(value)
        case "calls":
            return checks.BudgetCheck(calls=value, on_exhausted="hold")
        case "bytes":
            return checks.BudgetCheck(bytes=value)
    return checks.RateCheck(1, timedelta(minutes=1))


def gates_of(world: World) -> dict[str, GateRule]:
    rules = {}
    for number, each in enumerate(world.rules):
        mode: Any = each.mode
        match = Selector(tools=(each.pattern,))
        rules[f"r{number}"] = GateRule(f"r{number}", match, check_of(each), HERE, when_of(each), mode)
    return rules


def access_of(world: World, gates: dict[str, GateRule] | None = None) -> Access:
    tier = TIERS[world.tier]
    trust = EffectiveTrust(tier, world.flags, False, tier.callable)
    tool = DeclaredTool(world.tool, "Does it.", trust, "http", HERE, input_schema=None)
    artifacts = {
        name: ArtifactClass(name, object, HERE, max_tier=ceiling, blocked_by=blocked)
        for name, ceiling, blocked in world.flows
    }
    audience = frozenset({*ROLES, *SUBJECTS})
    snapshot = Snapshot(
        "random",
        {},
        flags={name: Flag(name) for name in FLAGS},
        tiers=TIERS,
        artifacts=artifacts,
        collision_policies=EMPTY,
        gates=gates_of(world) if gates is None else gates,
        pipelines=EMPTY,
        tools={tool.name: tool},
        catalogues={"desk": Catalogue("desk", audience, {tool.name: tool.name}, "standard", "/desk", HERE)},
    )
    return Access(snapshot, CasbinAuthoriser(world.policy, ranks=snapshot.ranks))


def memory_of(world: World) -> TurnState:
    memory = TurnState()
    memory.flags.update(world.memory.flags)
    memory.classes.update(world.memory.classes)
    for tool in world.memory.tools:
        memory.record_call(Taint(tool, (), "internal"), "allow", at=NOW - timedelta(minutes=1))
    for _ in range(world.memory.same):
        memory.reserve_call("this")
    for _ in range(world.memory.calls - world.memory.same):
        memory.reserve_call("that")
    memory.add_bytes(world.memory.bytes)
    return memory


def call_of(world: World) -> AccessQuestion:
    return AccessQuestion(world.principal, "desk", world.tool, NOW, {"n": world.n}, memory_of(world), "this")


def expected(world: World) -> str:
    authoriser = ReferenceAuthoriser(world.policy, {name: tier.rank for name, tier in TIERS.items()})
    reference = Reference(
        authoriser, "desk", world.tool, world.tier, world.flags, {"n": world.n}, world.principal.names, world.memory
    )
    if not TIERS[world.tier].callable or not reference.may("invoke", f"tool:{world.tool}"):
        return "deny"
    return reference.decision(world.rules, world.flows)


@given(worlds)
def test_full_decision_is_that_of_the_reference(world: World) -> None:
    assert access_of(world).decide_call(call_of(world)).decision == expected(world)


@given(worlds)
def test_handler_decides_as_explained(world: World) -> None:
    access, call = access_of(world), call_of(world)
    tool = access.snapshot.tools[world.tool]

    explained = access.decide_call(call)
    outcome = access.evaluate_rules(call, tool, access.find_rules(tool, "desk"))

    if explained.outcome is not None:
        assert explained.outcome == outcome


@given(worlds, st.randoms(use_true_random=False))
def test_order_of_rules_changes_nothing(world: World, random: Any) -> None:
    gates = list(gates_of(world).items())
    random.shuffle(gates)

    before, after = (
        access_of(world).decide_call(call_of(world)),
        access_of(world, dict(gates)).decide_call(call_of(world)),
    )

    assert (before.decision, before.because) == (after.decision, after.because)


@given(worlds)
def test_rules_that_observe_decide_nothing(world: World) -> None:
    watching = {name: replace(rule, mode="observe") for name, rule in gates_of(world).items()}
    unguarded = replace(world, rules=[])

    assert access_of(world, watching).decide_call(call_of(world)).decision == expected(unguarded)


@given(worlds)
def test_rule_never_grants(world: World) -> None:
    without = access_of(world, {}).decide_call(call_of(world)).decision

    assert SEVERITY[access_of(world).decide_call(call_of(world)).decision] >= SEVERITY[without]


@given(worlds)
def test_what_a_turn_has_seen_never_opens_a_flow(world: World) -> None:
    fresh = replace(world, memory=replace(world.memory, classes=frozenset()))

    before = access_of(world, {}).decide_call(call_of(fresh)).decision
    after = access_of(world, {}).decide_call(call_of(world)).decision

    assert SEVERITY[after] >= SEVERITY[before]
