"""Snapshot: everything that is declared, linked and immutable, with where each entry came from.

One registry per kind, looked up by name. A request keeps the snapshot it began with; a changed configuration is
another snapshot with another revision. Nothing here knows YAML, and no decision is made here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any, Final, Literal

from gateway.core.exact_json import exact_digest
from gateway.governance.cases import PolicyCase
from gateway.governance.catalogues import Combination, GovernedTool
from gateway.governance.collisions import Collision, CollisionRules
from gateway.governance.diagnostics import Position
from gateway.governance.effects import EFFECT_FLAGS
from gateway.governance.globs import glob_matches
from gateway.governance.rules import GateRule
from gateway.governance.stages import Phase
from gateway.governance.trust import EffectiveTrust, Flag, Hint, Tier

Lifecycle = Literal["draft", "active", "deprecated", "retired"]
Registry = Mapping[str, "Declared"]

IN_USE: Final[frozenset[Lifecycle]] = frozenset({"active", "deprecated"})
CONTENT: Final = "artifact_content"
"""What policies and rules call reading a result whole: its download, its resource, its text in a record."""

SHORT_REVISION: Final = 12
"""Characters of a revision that people, spans and headers are shown."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A document as it counts: its data with environment and overlay applied, defaults and order taken away."""

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
    """A tool as governance sees it. `name` is its identity in policies; catalogues may advertise another one.

    `input_schema` is closed, as it is enforced; `None` means that only the upstream server knows it.
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
    """The digest of the upstream's definition that somebody looked at; `None` where nobody did."""
    is_imported: bool = False
    """Whether an upstream brings it; a document that publishes an upstream's tool declares it."""
    request: Mapping[str, Any] | None = None
    """What a call becomes and what its answers are, for operations of an OpenAPI document."""
    artifact: str = "text"
    inline: bool = True
    idempotent: bool = False
    ephemeral: bool = False
    on_collision: Literal["throw", "replace", "keep"] = "throw"
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    """What its document promises of the JSON of its results."""
    brought_output: Mapping[str, Any] | None = None
    """What its upstream promises of it, where no document does."""
    dialect: str | None = None
    """The `$schema` that an upstream gives its input, which says nothing to us: there is one dialect."""
    as_task: bool = False
    """Whether its server runs it as a task only."""
    hints: Mapping[Hint, bool] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    object: str = field(init=False, repr=False, compare=False)
    """What policy rows call it."""
    is_active: bool = field(init=False, repr=False, compare=False)
    """Whether it is in use whatever the day."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "object", f"tool:{self.name}")
        object.__setattr__(self, "is_active", self.lifecycle == "active")

    @property
    def governed(self) -> GovernedTool:
        """What selectors of catalogues and gate rules look at."""
        tier = self.trust.tier
        return GovernedTool(
            self.name, tier.name, tier.rank, self.trust.flags, self.labels, self.upstream, artifact=self.artifact
        )

    def is_in_use(self, today: date) -> bool:
        """Whether its life allows calls: active, or deprecated and not past its last day."""
        if self.lifecycle not in IN_USE:
            return False
        return self.deprecation is None or self.lifecycle != "deprecated" or today <= self.deprecation.remove_after


@dataclass(frozen=True, slots=True)
class Query:
    """A way to read what one tool yields: a query tool, or `CONTENT` for all of it.

    It has the tier, labels and upstream of the tool that made the result. Reading has no effects, so it has none of
    the flags that say what a call does.
    """

    name: str
    maker: DeclaredTool
    artifact: str
    """The class that the result was kept as."""
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
    def governed(self) -> GovernedTool:
        """What selectors of gate rules look at."""
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
class Offer:
    """A prompt, or a group of resources, of an upstream. `name` is its identity in policies: upstream.name."""

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
        """What policy rows call it, and what tells it from everything else in a snapshot."""
        return f"{self.kind}:{self.name}"

    @property
    def governed(self) -> GovernedTool:
        """What selectors of catalogues look at."""
        tier = self.trust.tier
        return GovernedTool(
            self.name, tier.name, tier.rank, self.trust.flags, self.labels, self.upstream, kind=self.kind
        )

    def owns(self, uri: str) -> bool:
        return any(glob_matches(uri, pattern) for pattern in self.uris)


Requested = DeclaredTool | Query | Offer
"""What a caller can ask for: a call, a look at a result, a prompt or a resource of another server."""


@dataclass(frozen=True, slots=True)
class ArtifactClass:
    """What the bytes of a result are and what may happen to them. `constructor` is the class that reads them."""

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
    """What telemetry may have at most; what it takes is for its own document to say."""


@dataclass(frozen=True, slots=True)
class StageUse:
    """A stage where a pipeline uses it, with the options written there."""

    name: str
    options: Mapping[str, Any]
    position: Position


@dataclass(frozen=True, slots=True)
class Pipeline:
    name: str
    phases: Mapping[Phase, tuple[StageUse, ...]]
    position: Position
    refuses: frozenset[str] = frozenset()

    def stage(self, name: str) -> StageUse | None:
        return next((use for uses in self.phases.values() for use in uses if use.name == name), None)


@dataclass(frozen=True, slots=True)
class CollisionPolicy:
    name: str
    rules: CollisionRules
    prefix: str
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The tools an audience gets. `tools` leads from the advertised name to the tool's identity."""

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
    """Whether the JSON of a result is sent beside its text."""
    implicit: timedelta | None = timedelta(minutes=30)
    """How long an implicit turn goes on without a call; nothing: calls without a handle have none."""
    instructions: str | None = None
    collisions: tuple[Collision, ...] = ()
    combinations: tuple[Combination, ...] = ()
    """Forbidden combinations that are completed; in a linked snapshot each has a waiver."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """From the advertised name to the prompt's object."""
    resources: tuple[str, ...] = ()
    """Objects of the groups of resources that are served."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One revision of everything declared."""

    name: str
    documents: Mapping[str, Registry]
    """Every document by kind and name, Overlays and PolicyTests left out: they say nothing that is not in here."""
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
    """Every role that an identity provider can give."""
    subjects: frozenset[str] = frozenset()
    """Every subject that an identity provider names; those of an issuer outside are not known."""
    offers: Mapping[str, Offer] = field(default_factory=dict)
    """Prompts and groups of resources of upstreams, by their object."""
    queries: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """The input schemas of query tools, by artifact class and by name."""
    revision: str = ""

    @property
    def short_revision(self) -> str:
        return self.revision[:SHORT_REVISION]

    @property
    def ranks(self) -> dict[str, int]:
        return {name: tier.rank for name, tier in self.tiers.items()}

    @property
    def query_names(self) -> frozenset[str]:
        """Every name under which something can be read."""
        return frozenset({CONTENT}.union(*self.queries.values()))

    def query(self, name: str, maker: DeclaredTool, artifact: str | None = None) -> Query:
        """Reading what a tool yields; `artifact` is the class it was kept as, if that is not the tool's."""
        kept = artifact or maker.artifact
        return Query(name, maker, kept, self.queries.get(kept, {}).get(name))

    def queries_in(self, catalogue: str, name: str) -> dict[str, Query]:
        """The query tool of that name for each tool of a catalogue whose results have it, by the advertised name."""
        found = self.catalogues.get(catalogue)
        named = {each: self.tools.get(identity) for each, identity in (found.tools if found else {}).items()}
        return {
            each: self.query(name, tool)
            for each, tool in named.items()
            if tool is not None and (name == CONTENT or name in self.queries.get(tool.artifact, {}))
        }

    def tool_in(self, catalogue: str, advertised: str) -> DeclaredTool | None:
        """The tool that a catalogue advertises under a name, hidden ones too."""
        found = self.catalogues.get(catalogue)
        identity = found.tools.get(advertised) if found else None
        return self.tools.get(identity) if identity else None


def revision_of(snapshot: Snapshot, rows: Sequence[Sequence[str]], *, aliases: Mapping[str, str] | None = None) -> str:
    """SHA-256 over what the snapshot and the policy rows mean: no position, no order of files or rows, no day.

    What follows from the day (a review that grew old) is left out, so that equal folders have equal revisions.
    `aliases` are texts that only this machine has, and what stands for them.
    """
    meaning: dict[str, Any] = {
        "documents": {
            kind: {name: _aliased(each.data, aliases or {}) for name, each in registry.items()}
            for kind, registry in snapshot.documents.items()
        },
        "tools": {tool.name: [*_trusted(tool.trust), *_brought(tool)] for tool in snapshot.tools.values()},
        "catalogues": {each.name: [dict(each.tools), sorted(each.hidden)] for each in snapshot.catalogues.values()},
        "policy": sorted(map(list, {tuple(row) for row in rows})),
    }
    if snapshot.offers:
        meaning["offers"] = {key: _offered(each) for key, each in snapshot.offers.items()}
        served = {each.name: [dict(each.prompts), sorted(each.resources)] for each in snapshot.catalogues.values()}
        meaning["offered"] = served
    return exact_digest(meaning)


def _trusted(trust: EffectiveTrust) -> list[Any]:
    return [trust.tier.name, sorted(trust.flags), trust.trusted, trust.effects]


def _offered(offer: Offer) -> list[Any]:
    return [*_trusted(offer.trust), offer.given, list(offer.uris), list(offer.templates)]


def _aliased(value: Any, aliases: Mapping[str, str]) -> Any:
    match value:
        case str() if aliases:
            for text, alias in aliases.items():
                value = value.replace(text, alias)
            return value
        case dict() if aliases:
            return {key: _aliased(each, aliases) for key, each in value.items()}
        case list() if aliases:
            return [_aliased(each, aliases) for each in value]
    return value


def _brought(tool: DeclaredTool) -> list[Any]:
    """What no document says of an upstream's tool, and yet is what is served."""
    told = [tool.description, tool.input_schema, tool.title] if tool.is_imported else []
    told += [] if tool.request is None else [tool.request]
    return told if tool.pinned_digest is None else [*told, tool.pinned_digest]
