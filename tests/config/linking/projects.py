"""Small configurations to link: a gateway with flags and tiers, to which each test adds its own documents."""

import json
from collections.abc import Collection, Mapping
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from gateway.config.linking.linker import LinkResult, link_documents
from gateway.config.loader import ConfigDocuments, load_documents
from gateway.registries.diagnostics import Diagnostic
from gateway.registries.imported_definition import UpstreamDefinition
from gateway.registries.snapshot import DeclaredTool, Snapshot

TODAY: Final = date(2026, 11, 16)
Data = Mapping[str, Any]


def document(kind: str, name: str, spec: Data, **metadata: Any) -> str:
    """A document as JSON, which is YAML."""
    named = {"name": name, "owner": "team-a", **metadata}
    return json.dumps({"apiVersion": "gateway/v1", "kind": kind, "metadata": named, "spec": spec}) + "\n"


def tool(name: str = "order_read", *, labels: Data | None = None, **spec: Any) -> str:
    given = {
        "version": "1.0.0",
        "description": "Does something.",
        "input": {"schema": {"type": "object", "properties": {"order": {"type": "string"}}}},
        "backend": {"type": "http", "method": "GET", "url": "http://127.0.0.1:9000/"},
        **spec,
        "trust": _trust(spec, "inner"),
    }
    return document("Tool", name, given, labels=labels or {})


def upstream(name: str = "wiki", *, labels: Data | None = None, **import_: Any) -> str:
    terms = {"include": ["*"], **import_, "trust": _trust(import_, "middle")}
    transport = {"type": "streamable-http", "url": "http://127.0.0.1:9001/mcp"}
    return document("Upstream", name, {"transport": transport, "import": terms}, labels=labels or {})


def _trust(given: Data, tier: str) -> Data:
    """Trust without declared effects, unless a test overrides it: `flags: None` leaves them out."""
    trust = {"flags": [], **given.get("trust", {"tier": tier})}
    return {key: value for key, value in trust.items() if value is not None}


def catalogue(name: str = "desk", **spec: Any) -> str:
    given = {
        "audience": ["role:clerk"],
        "include": [{"tools": ["*"]}],
        "publish": {"path": f"/{name}", "structured": "off"},
        **spec,
    }
    return document("Catalogue", name, given)


def tier(name: str, **spec: Any) -> str:
    return document("TrustTier", name, {"rank": 50, "description": "A tier.", "origin": "first-party", **spec})


def flag(name: str, **spec: Any) -> str:
    return document("TrustFlag", name, {"description": "A flag.", **spec})


def policy(name: str = "careful", **spec: Any) -> str:
    return document("CollisionPolicy", name, spec)


def pipeline(name: str = "standard", **spec: Any) -> str:
    return document("Pipeline", name, spec or {"call": [{"use": "gates"}]})


def gateway(**spec: Any) -> str:
    defaults = {"pipeline": "standard", "collisionPolicy": "careful", "tier": "outer"}
    return document("Gateway", "small", {"defaults": defaults, "identity": ["local"], "storage": "main", **spec})


TRUST: Final = (
    tier("inner", rank=0, mayBeTrusted=True),
    tier("middle", rank=10, origin="third-party-private"),
    tier("outer", rank=20, origin="third-party-public", callable=False),
    flag("writes", hint={"readOnly": False}),
    flag("destructive", implies=["writes"], hint={"destructive": True}),
    flag("private-data"),
    flag("egress", hint={"openWorld": True}),
)
INSTALLATION: Final = (
    gateway(),
    document("IdentityProvider", "local", {"type": "none", "subject": "user:you", "roles": ["role:clerk"]}),
    document("Storage", "main", {"type": "sqlite", "path": "data/gateway.db"}),
)
NAMES: Final = (policy(),)
STAGES: Final = (pipeline(),)


def loaded(*texts: str, environ: Mapping[str, str] | None = None) -> ConfigDocuments:
    with TemporaryDirectory() as folder:
        Path(folder, "a.yaml").write_text("---\n".join(texts), encoding="utf-8")
        return load_documents([Path(folder)], environ=environ or {}, prefixes=False)


def linked(
    *texts: str,
    today: date = TODAY,
    imports: Collection[UpstreamDefinition] = (),
    packages: Collection[str] = (),
    environ: Mapping[str, str] | None = None,
    installation: Collection[str] = INSTALLATION,
    trust: Collection[str] = TRUST,
    names: Collection[str] = NAMES,
    stages: Collection[str] = STAGES,
) -> LinkResult:
    read = loaded(*installation, *trust, *names, *stages, *texts, environ=environ)
    return link_documents(read, today=today, imports=imports, packages=packages)


def snapshot_of(found: LinkResult) -> Snapshot:
    assert found.snapshot is not None, found.diagnostics
    return found.snapshot


def only_tool(found: LinkResult) -> DeclaredTool:
    (only,) = snapshot_of(found).tools.values()
    return only


def list_codes(found: LinkResult, *, besides: Collection[str] = ("unpublished-tool",)) -> list[str]:
    """The codes of all problems except those that the test is not about."""
    return [each.code for each in found.diagnostics if each.code not in besides]


def problem(found: LinkResult, code: str) -> Diagnostic:
    (only,) = [each for each in found.diagnostics if each.code == code]
    return only
