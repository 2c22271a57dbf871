"""Snapshot: all linked declarations, immutable, each with its position.

There is one registry per kind, with entries by name. A request uses one snapshot from start to end; a changed
configuration is a new snapshot with a new revision.

`describe_tool` returns what clients see of a tool: title, description, schema and hints as linked, but no annotations
of an upstream. The caller decides whether a client may see the tool.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any, Final, Literal

from gateway.model import exact_digest, glob_matches
from gateway.policy import GateRule
from gateway.registries.collision_resolution import Collision, CollisionRules
from gateway.registries.diagnostics import Position
from gateway.registries.effective_trust import EffectiveTrust, Tier
from gateway.registries.grant_policy import GrantPolicy
from gateway.registries.pipeline_stages import Phase
from gateway.registries.policy_cases import PolicyCase
from gateway.registries.tool_flags import EFFECT_FLAGS, Combination, Flag, Hint
from gateway.registries.tool_selection import GovernedTool

Lifecycle = Literal["draft", "active", "deprecated", "retired"]
DocumentRegistry = Mapping[str, "DeclaredDocument"]

CALLABLE_LIFECYCLES: Final[frozenset[Lifecycle]] = frozenset({"active", "deprecated"})
CONTENT: Final = "artifact_content"
"""Name in policies and rules for reading a complete result: its download, its resource, its text in a record."""

SHORT_REVISION: Final = 12
"""Length of the revision that is shown to people, in spans and in headers."""


@dataclass(frozen=True, slots=True)
class DeclaredDocument:
    """An effective document: its data after environment and overlay, without defaults."""

    kind: str
    name: str
    owner: str | None
    position: Position
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deprecation:
    since: date
    remove_after: date
    use: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A linked tool. `name` is its identity in policies; catalogues may advertise another name.

    `input_schema` is the closed, enforced schema; `None` if only the upstream server knows it.
    """

    name: str
    description: str
    trust: EffectiveTrust
    backend: str
    position: Position
    title: str | None = None
    owner: str | None = None
    version: str | None = None
    lifecycle: Lifecycle = "active"
    deprecation: Deprecation | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    upstream: str | None = None
    remote_name: str | None = None
    pinned_digest: str | None = None
    """Digest of the reviewed upstream definition; `None` if it is not pinned."""
    is_imported: bool = False
    """Whether it is imported without a Tool document."""
    request: Mapping[str, Any] | None = None
    """The HTTP request and response of an OpenAPI operation."""
    artifact: str = "text"
    inline: bool = True
    idempotent: bool = False
    ephemeral: bool = False
    on_collision: Literal["throw", "replace", "keep"] = "throw"
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    """Schema of JSON results that its document declares."""
    upstream_output_schema: Mapping[str, Any] | None = None
    """Schema of JSON results that its upstream declares, if no document does."""
    dialect: str | None = None
    """The `$schema` of the upstream's input schema. It is not used: there is one dialect."""
    as_task: bool = False
    """Whether its server runs it only as a task."""
    hints: Mapping[Hint, bool] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    object: str = field(init=False, repr=False, compare=False)
    """Its object name in policy rows."""
    is_active: bool = field(init=False, repr=False, compare=False)
    """Whether it is active, independent of the day."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "object", f"tool:{self.name}")
        object.__setattr__(self, "is_active", self.lifecycle == "active")

    @property
    def to_governed(self) -> GovernedTool:
        """The properties that selectors of catalogues and gate rules use."""
        tier = self.trust.tier
        return GovernedTool(
            self.name, tier.name, tier.rank, self.trust.flags, self.labels, self.upstream, artifact=self.artifact
        )

    def is_callable_on(self, today: date) -> bool:
        """Whether its lifecycle allows calls: active, or deprecated and not past its last day."""
        if self.lifecycle not in CALLABLE_LIFECYCLES:
            return False
        return self.deprecation is None or self.lifecycle != "deprecated" or today <= self.deprecation.remove_after


@dataclass(frozen=True, slots=True)
class Query:
    """A read access to results of a tool: a query tool, or `CONTENT` for the complete result.

    It has the tier, labels and upstream of the tool that created the result, but not its effect flags, because reading
    has no effects.
    """

    name: str
    maker: DeclaredTool
    artifact: str
    """The class of the stored result."""
    input_schema: Mapping[str, Any] | None = None
    object: str = field(init=False, repr=False, compare=False)
    trust: EffectiveTrust = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        trust = self.maker.trust
        without_effects = replace(
            trust,
            flags=trust.flags - EFFECT_FLAGS,
            assumed=trust.assumed - EFFECT_FLAGS,
            claimed=trust.claimed - EFFECT_FLAGS,
        )
        object.__setattr__(self, "object", f"tool:{self.name}")
        object.__setattr__(self, "trust", without_effects)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.maker.labels

    @property
    def upstream(self) -> str | None:
        return self.maker.upstream

    @property
    def position(self) -> Position:
        return self.maker.position

    @property
    def to_governed(self) -> GovernedTool:
        """The properties that selectors of gate rules use."""
        tier = self.trust.tier
        return GovernedTool(
            self.name,
            tier.name,
            tier.rank,
            self.trust.flags,
            self.labels,
            self.upstream,
            artifact=self.artifact,
            kind="query",
        )


@dataclass(frozen=True, slots=True)
class DeclaredDefinition:
    """A prompt or resource group of an upstream. `name` is its identity in policies: upstream.name."""

    kind: Literal["prompt", "resource"]
    name: str
    upstream: str
    remote_name: str
    trust: EffectiveTrust
    position: Position
    given: Mapping[str, Any] = field(default_factory=dict)
    """The definition of a prompt as its server gives it."""
    uris: tuple[str, ...] = ()
    """Patterns of the URIs of a group."""
    templates: tuple[Mapping[str, Any], ...] = ()
    """Templates of a group as their server defines them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    pinned_digest: str | None = None

    @property
    def object(self) -> str:
        """Its object name in policy rows, unique in a snapshot."""
        return f"{self.kind}:{self.name}"

    @property
    def to_governed(self) -> GovernedTool:
        """The properties that selectors of catalogues use."""
        tier = self.trust.tier
        return GovernedTool(
            self.name, tier.name, tier.rank, self.trust.flags, self.labels, self.upstream, kind=self.kind
        )

    def matches_uri(self, uri: str) -> bool:
        return any(glob_matches(uri, pattern) for pattern in self.uris)


Requested = DeclaredTool | Query | DeclaredDefinition
"""What a caller can request: a call, a query of a result, a prompt or a resource of an upstream."""


@dataclass(frozen=True, slots=True)
class ArtifactClass:
    """A class of results and its handling. `constructor` is the Python class that reads them."""

    name: str
    constructor: type
    position: Position
    options: Mapping[str, Any] = field(default_factory=dict)
    queries: frozenset[str] | None = None
    sensitivity: str = "internal"
    max_size: int | None = None
    inline_below: int | None = None
    retain: timedelta | None = None
    redact: tuple[str, ...] = ()
    max_tier: str | None = None
    blocked_by: frozenset[str] = frozenset()
    capture_arguments: Literal["none", "keys", "values"] = "values"
    capture_results: Literal["none", "values"] = "values"
    """Upper limits of what telemetry records; the Telemetry document may record less."""


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A use of a stage in a pipeline, with its options."""

    name: str
    options: Mapping[str, Any]
    position: Position


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    phases: Mapping[Phase, tuple[PipelineStage, ...]]
    position: Position
    refuses: frozenset[str] = frozenset()

    def stage(self, name: str) -> PipelineStage | None:
        return next((use for uses in self.phases.values() for use in uses if use.name == name), None)


@dataclass(frozen=True, slots=True)
class CollisionPolicy:
    name: str
    rules: CollisionRules
    prefix: str
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The tools of an audience. `tools` maps the advertised name to the tool's identity."""

    name: str
    audience: frozenset[str]
    tools: Mapping[str, str]
    pipeline: str
    path: str
    position: Position
    title: str | None = None
    owner: str | None = None
    hidden: frozenset[str] = frozenset()
    protocols: tuple[str, ...] = ("mcp", "http")
    render: Literal["envelope", "plain"] = "envelope"
    structured: Literal["raw", "off"] = "raw"
    """Whether the JSON of a result is also sent as structured content."""
    implicit: timedelta | None = timedelta(minutes=30)
    """Idle time after which an implicit turn ends; `None` if calls without a handle have no turn."""
    instructions: str | None = None
    collisions: tuple[Collision, ...] = ()
    combinations: tuple[Combination, ...] = ()
    """Forbidden combinations of its tools; in a linked snapshot each has a waiver."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompt objects by advertised name."""
    resources: tuple[str, ...] = ()
    """Objects of the served resource groups."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One revision of everything declared."""

    name: str
    documents: Mapping[str, DocumentRegistry]
    """Documents by kind and name, without Overlays and PolicyTests."""
    flags: Mapping[str, Flag]
    tiers: Mapping[str, Tier]
    artifacts: Mapping[str, ArtifactClass]
    collision_policies: Mapping[str, CollisionPolicy]
    gates: Mapping[str, GateRule]
    pipelines: Mapping[str, Pipeline]
    tools: Mapping[str, DeclaredTool]
    catalogues: Mapping[str, Catalogue]
    default_catalogue: str | None = None
    cases: Sequence[PolicyCase] = ()
    roles: frozenset[str] = frozenset()
    """Every role that an identity provider can grant."""
    subjects: frozenset[str] = frozenset()
    """Every subject that an identity provider names; subjects of external issuers are unknown."""
    offers: Mapping[str, DeclaredDefinition] = field(default_factory=dict)
    """Prompts and resource groups of upstreams, by object."""
    queries: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Input schemas of query tools, by artifact class and name."""
    grants: Mapping[str, GrantPolicy] = field(default_factory=dict)
    """Grant policies by name."""
    revision: str = ""

    @property
    def short_revision(self) -> str:
        return self.revision[:SHORT_REVISION]

    @property
    def ranks(self) -> dict[str, int]:
        return {name: tier.rank for name, tier in self.tiers.items()}

    @property
    def query_names(self) -> frozenset[str]:
        """All names of queries."""
        return frozenset({CONTENT}.union(*self.queries.values()))

    def query(self, name: str, maker: DeclaredTool, artifact: str | None = None) -> Query:
        """Return a query of results of a tool; `artifact` is the stored class, if it is not that of the tool."""
        stored = artifact or maker.artifact
        return Query(name, maker, stored, self.queries.get(stored, {}).get(name))

    def queries_in(self, catalogue: str, name: str) -> dict[str, Query]:
        """Return the query of this name for each tool of a catalogue that has it, by advertised name."""
        found = self.catalogues.get(catalogue)
        named = {each: self.tools.get(identity) for each, identity in (found.tools if found else {}).items()}
        return {
            each: self.query(name, tool)
            for each, tool in named.items()
            if tool is not None and (name == CONTENT or name in self.queries.get(tool.artifact, {}))
        }

    def tool_in(self, catalogue: str, advertised: str) -> DeclaredTool | None:
        """Return the tool that a catalogue advertises under a name, including hidden tools."""
        found = self.catalogues.get(catalogue)
        identity = found.tools.get(advertised) if found else None
        return self.tools.get(identity) if identity else None


def compute_revision(
    snapshot: Snapshot, rows: Sequence[Sequence[str]], *, aliases: Mapping[str, str] | None = None
) -> str:
    """Return the SHA-256 digest of the snapshot and the policy rows, independent of positions and order.

    Properties that depend on the day (an old review) are left out, so that equal folders have equal revisions.
    `aliases` maps texts of this machine to replacements.
    """
    meaning: dict[str, Any] = {
        "documents": {
            kind: {name: _replace_aliases(each.data, aliases or {}) for name, each in registry.items()}
            for kind, registry in snapshot.documents.items()
        },
        "tools": {tool.name: [*_trust_data(tool.trust), *_upstream_data(tool)] for tool in snapshot.tools.values()},
        "catalogues": {each.name: [dict(each.tools), sorted(each.hidden)] for each in snapshot.catalogues.values()},
        "policy": sorted(map(list, {tuple(row) for row in rows})),
    }
    if snapshot.offers:
        meaning["offers"] = {key: _definition_data(each) for key, each in snapshot.offers.items()}
        served = {each.name: [dict(each.prompts), sorted(each.resources)] for each in snapshot.catalogues.values()}
        meaning["offered"] = served
    return exact_digest(meaning)


def _trust_data(trust: EffectiveTrust) -> list[Any]:
    return [trust.tier.name, sorted(trust.flags), trust.trusted, trust.effects]


def _definition_data(offer: DeclaredDefinition) -> list[Any]:
    return [*_trust_data(offer.trust), offer.given, list(offer.uris), list(offer.templates)]


def _replace_aliases(value: Any, aliases: Mapping[str, str]) -> Any:
    match value:
        case str() if aliases:
            for text, alias in aliases.items():
                value = value.replace(text, alias)
            return value
        case dict() if aliases:
            return {key: _replace_aliases(each, aliases) for key, each in value.items()}
        case list() if aliases:
            return [_replace_aliases(each, aliases) for each in value]
    return value


def _upstream_data(tool: DeclaredTool) -> list[Any]:
    """Return the properties of an upstream's tool that are served but not in a document."""
    found = [tool.description, tool.input_schema, tool.title] if tool.is_imported else []
    found += [] if tool.request is None else [tool.request]
    return found if tool.pinned_digest is None else [*found, tool.pinned_digest]


def describe_tool(name: str, tool: DeclaredTool, catalogue: Catalogue) -> dict[str, Any] | None:
    """Return the tool under its advertised name, or `None` if only the upstream server knows its schema."""
    if tool.input_schema is None:
        return None
    found: dict[str, Any] = {
        "name": name,
        "description": _description(tool, catalogue),
        "input_schema": dict(tool.input_schema),
    }
    if tool.hints:  # a tool whose effects are unknown has none: clients assume the worst then
        found["annotations"] = {f"{hint}Hint": value for hint, value in tool.hints.items()}
    return {**found, "title": tool.title} if tool.title else found


def _description(tool: DeclaredTool, catalogue: Catalogue) -> str:
    if tool.lifecycle != "deprecated" or tool.deprecation is None:
        return tool.description
    replacement = _find_advertised_name(catalogue.tools, tool.deprecation.use)
    instead = f" Use {replacement} instead." if replacement else ""
    return f"{tool.description}\n\nDeprecated: goes away after {tool.deprecation.remove_after}.{instead}"


def _find_advertised_name(names: Mapping[str, str], identity: str | None) -> str | None:
    """Return the advertised name of a replacement, or `None` if it is not in the catalogue."""
    return next((name for name, tool in names.items() if tool == identity), None)
