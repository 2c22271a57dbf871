"""Loading a folder: all layers in one run, every problem at its token."""

from pathlib import Path

import pytest

from gateway.config.kinds.tools import ToolDocument
from gateway.config.loader import load_documents

GATEWAY = """\
apiVersion: gateway/v1
kind: Gateway
metadata: {name: acme, owner: team-platform}
spec:
  defaults: {pipeline: standard, collisionPolicy: careful, tier: internal}
  identity: [local]
  storage: main
---
apiVersion: gateway/v1
kind: IdentityProvider
metadata: {name: local, owner: team-platform}
spec: {type: none, subject: "user:dev"}
---
apiVersion: gateway/v1
kind: Storage
metadata: {name: main, owner: team-platform}
spec: {type: sqlite, path: "${DATA:-/tmp/data}/gateway.db"}
---
apiVersion: gateway/v1
kind: TrustTier
metadata: {name: internal}
spec: {rank: 0, description: Ours., origin: first-party}
---
apiVersion: gateway/v1
kind: Pipeline
metadata: {name: standard, owner: team-platform}
spec: {call: [{use: gates}]}
---
apiVersion: gateway/v1
kind: CollisionPolicy
metadata: {name: careful, owner: team-platform}
spec: {onCollision: throw}
"""
TOOL = """\
apiVersion: gateway/v1
kind: Tool
metadata: {name: price_quote, owner: team-commerce}
spec:
  version: 1.0.0
  description: Computes a price.
  trust: {tier: internal, flags: []}
  input: {schema: {type: object, properties: {sku: {type: string}}}}
  limits: {timeout: 10s}
  backend: {type: python, entrypoint: "acme:quote"}
"""
OVERLAY = """\
apiVersion: gateway/v1
kind: Overlay
metadata: {name: prod, owner: team-platform}
spec:
  environment: prod
  patches:
    - target: {kind: Tool, name: price_quote}
      merge: {limits: {timeout: 20 seconds}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "gateway.yaml").write_text(GATEWAY, encoding="utf-8")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "price.yaml").write_text(TOOL, encoding="utf-8")
    return tmp_path


def problems(folder: Path, environment: str | None = None) -> list[str]:
    loaded = load_documents([folder], environ={}, environment=environment, prefixes=False)
    return [f"{found.position}: {found.code}" for found in loaded.diagnostics]


def test_whole_folder_loads_without_a_problem(folder: Path) -> None:
    loaded = load_documents([folder], environ={"DATA": "/srv"}, prefixes=False)

    assert loaded.diagnostics == ()
    assert not loaded.has_errors
    tools = [(each.spec, each.source) for each in loaded.documents if isinstance(each.spec, ToolDocument)]
    assert [(spec.metadata.name, source.file) for spec, source in tools] == [("price_quote", "tools/price.yaml")]
    assert [(use.name, use.is_set, use.default) for use in loaded.environment] == [("DATA", True, "/tmp/data")]


def test_problems_of_all_layers_are_reported_in_one_run(folder: Path) -> None:
    broken = TOOL.replace("limits: {timeout: 10s}", "limits: {timeout: 10s, max_output: 1MiB}")
    broken = broken.replace("tier: internal", "tier: internl").replace("acme:quote", "${MODULE}:quote")
    (folder / "tools" / "price.yaml").write_text(broken, encoding="utf-8")
    (folder / "syntax.yaml").write_text("a: [1,\n", encoding="utf-8")

    found = problems(folder)

    assert found == [
        "syntax.yaml:1:7: yaml-syntax",
        "tools/price.yaml:7:17: unknown-reference",
        "tools/price.yaml:9:26: unknown-field",
        "tools/price.yaml:10:40: env-missing",
    ]


def test_option_that_could_not_be_filled_in_is_one_problem(folder: Path) -> None:
    stages = "{call: [{use: timeout, with: {after: '${AFTER}'}}, {use: retry, with: {unlessFlags: [sends]}}]}"
    gateway = GATEWAY.replace("{call: [{use: gates}]}", stages)
    (folder / "gateway.yaml").write_text(gateway, encoding="utf-8")

    assert problems(folder) == ["gateway.yaml:27:45: env-missing", "gateway.yaml:27:92: unknown-reference"]


def test_overlay_counts_in_its_environment_only_and_keeps_its_position(folder: Path) -> None:
    (folder / "overlay.yaml").write_text(OVERLAY, encoding="utf-8")

    assert problems(folder) == []
    assert problems(folder, "prod") == ["overlay.yaml:8:33: bad-duration"]


def test_positions_name_the_folder_a_user_gave(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bad.yaml").write_text("kind: Tol\n", encoding="utf-8")
    monkeypatch.chdir(folder.parent)

    loaded = load_documents([Path(folder.name)], environ={})

    assert {found.position.file for found in loaded.diagnostics} == {f"{folder.name}/bad.yaml"}
    assert loaded.has_errors


def test_missing_folder_is_one_clear_problem(tmp_path: Path) -> None:
    loaded = load_documents([tmp_path / "nowhere"], environ={})

    assert len(loaded.diagnostics) == 1
    assert loaded.has_errors


def test_value_from_the_environment_is_never_quoted(folder: Path) -> None:
    (folder / "tools" / "price.yaml").write_text(TOOL.replace("tier: internal", "tier: internal, trusted: 1"), "utf-8")
    broken = TOOL.replace("name: price_quote", "name: other").replace(
        "version: 1.0.0", "version: 1.0.0\n  lifecycle: ${STATE}"
    )
    (folder / "tools" / "other.yaml").write_text(broken, encoding="utf-8")

    loaded = load_documents([folder], environ={"STATE": "hunter2"}, prefixes=False)

    assert [found.code for found in loaded.diagnostics] == ["wrong-value", "wrong-type"]
    assert "hunter2" not in repr(loaded.diagnostics)
