"""A service for tests: real storage and handlers, tools made of plain functions, permissions in a set."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.artifacts.spooled_artifact import SpooledArtifact
from gateway.engine.artifact_classes import ArtifactTypes
from gateway.engine.call import Call
from gateway.engine.gates.definition_guard import DefinitionGuard
from gateway.engine.gates.guard import GuardDependencies
from gateway.engine.handler import HandlerDependencies, build_handler
from gateway.engine.live_revision import LiveCatalogue, LiveRevision
from gateway.engine.service import Service
from gateway.engine.stages.result_stages import redact_artifact
from gateway.model.caller import Principal
from gateway.model.schema.schema import Schema
from gateway.model.tools.backend import Invocation
from gateway.model.tools.tool import Tool
from gateway.model.tools.tool_registry import ToolRegistry
from gateway.policy.access import Access
from gateway.policy.authoriser import AccessDecision, AccessRequest
from gateway.policy.rules.gate_rules import GateRule
from gateway.registries.diagnostics import Position
from gateway.registries.effective_trust import EffectiveTrust, Tier
from gateway.registries.snapshot import ArtifactClass, Catalogue, DeclaredTool, Snapshot
from gateway.storage.blobs.disk_store import DiskSpool
from gateway.storage.sql.sqlite.engine import SqliteStore, open_sqlite_store
from tests.support.ready_databases import put_ready_database

HERE = Position("tests.yaml", 1)
TIER = Tier("open", 1, "first-party", may_be_trusted=True)
ANA = Principal("user:ana", frozenset({"role:staff"}), "acme")
BOB = Principal("user:bob", frozenset({"role:staff"}), "acme")
EVE = Principal("user:eve", frozenset({"role:nobody"}), "acme")
ANYTHING: dict[str, Any] = {"type": "object", "additionalProperties": True}
BUILT_IN = {"text": SpooledArtifact, "json": SpooledJsonArtifact}

Run = Callable[[Invocation], Awaitable[Any]]


class Grants:
    """Decides by rows of `(tool, action)`; without a row, the default applies."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], bool] = {}
        self.default = True

    def roles_of(self, names: frozenset[str]) -> frozenset[str]:
        return names

    def decide(self, request: AccessRequest) -> AccessDecision:
        row = self.rows.get((request.object.removeprefix("tool:"), request.action))
        if row is not None:
            return AccessDecision(row, "a row says so", HERE)
        return AccessDecision(self.default and request.action != "read", "the default")


def trust(*flags: str, callable: bool = True) -> EffectiveTrust:
    return EffectiveTrust(TIER, frozenset(flags), False, callable)


def declared(name: str, **fields: Any) -> DeclaredTool:
    fields.setdefault("trust", trust())
    return DeclaredTool(name, f"Does {name}.", backend="python", position=HERE, input_schema=ANYTHING, **fields)


@dataclass
class Plan:
    """What a test publishes: tools with their functions, gate rules, artifact classes, stages."""

    tools: dict[str, tuple[DeclaredTool, Run]] = field(default_factory=dict)
    gates: dict[str, GateRule] = field(default_factory=dict)
    artifacts: dict[str, ArtifactClass] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)
    max_output: int | None = None
    definition_guard: DefinitionGuard | None = None

    def tool(self, name: str, run: Any, **fields: Any) -> "Plan":
        async def constant(call: Invocation) -> Any:
            return run

        self.tools[name] = (declared(name, **fields), run if callable(run) else constant)
        return self

    def snapshot(self, revision: str = "r1" * 32) -> Snapshot:
        catalogues = [
            Catalogue("desk", frozenset({"role:staff"}), {name: name for name in self.tools}, "default", "/desk", HERE),
            Catalogue("vault", frozenset({"role:staff"}), {name: name for name in self.tools}, "default", "/v", HERE),
        ]
        return Snapshot(
            "tests",
            documents={},
            flags={},
            tiers={"open": TIER},
            artifacts=self.artifacts,
            collision_policies={},
            gates=self.gates,
            pipelines={},
            tools={name: tool for name, (tool, _) in self.tools.items()},
            catalogues={each.name: each for each in catalogues},
            revision=revision,
        )


@dataclass
class Gateway:
    service: Service
    store: SqliteStore
    grants: Grants
    plan: Plan

    def publish(self, revision: str = "r2" * 32, **changes: Any) -> None:
        """Publish again, with changes to the plan."""
        access = Access(replace(self.plan, **changes).snapshot(revision), self.grants)
        self.service.publish(published(replace(self.plan, **changes), access, self.service.journal))


def published(plan: Plan, access: Access, journal: Callable[[Call, DeclaredTool], Awaitable[None]]) -> LiveRevision:
    types = ArtifactTypes(access.snapshot.artifacts, built_in=BUILT_IN.__getitem__, mask=redact_artifact)
    catalogues = {}
    for name, each in access.snapshot.catalogues.items():
        handling = HandlerDependencies(
            access, name, types, journal, GuardDependencies(definition_guard=plan.definition_guard)
        )
        tools = [_tool(tool, run, handling, plan) for tool, run in plan.tools.values()]
        kinds = {tool.artifact for tool, _ in plan.tools.values()}
        queries = {tool.name: tool for kind in sorted(kinds) for tool in types.get(kind).query_tools()}
        catalogues[name] = LiveCatalogue(each, ToolRegistry(tools), queries, **plan.stages)
    return LiveRevision(access, catalogues, types, definition_guard=plan.definition_guard)


def _tool(tool: DeclaredTool, run: Run, handling: HandlerDependencies, plan: Plan) -> Tool:
    return Tool(
        name=tool.name,
        description=tool.description,
        input_schema=Schema(dict(ANYTHING)),
        handler=build_handler(tool, handling, run=run, max_output=plan.max_output),
        artifact_constructor=lambda: handling.types.get(tool.artifact),
    )


@asynccontextmanager
async def running(
    folder: Path, plan: Plan, *, open_spool: Callable[[SqliteStore], Awaitable[Any]] | None = None, **options: Any
) -> AsyncIterator[Gateway]:
    async with AsyncExitStack() as closing:
        store = await open_sqlite_store(put_ready_database(folder / "records.db"))
        closing.push_async_callback(store.close)
        spool = await (open_spool(store) if open_spool else DiskSpool.open(folder / "spool", small=store))
        closing.push_async_callback(spool.close)

        async def journal(call: Call, tool: DeclaredTool) -> None:
            await service.journal(call, tool)

        grants = Grants()
        service = Service(published(plan, Access(plan.snapshot(), grants), journal), store, spool, **options)
        yield Gateway(service, store, grants, plan)
