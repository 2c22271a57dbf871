"""The import arrows: who may import what, held by reading the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gateway"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Outside libraries a folder or file may import; the most specific path wins.
LIBRARIES: dict[str, set[str]] = {
    "gateway": set(),
    "gateway/approvals": set(),
    "gateway/approvals/webhooks.py": {"aiohttp", "yarl"},
    "gateway/audit": {"orjson"},
    "gateway/audit/keys.py": {"cryptography"},
    "gateway/authz": set(),
    "gateway/authz/enforcer.py": {"casbin"},
    "gateway/backends": set(),
    "gateway/backends/connections.py": {"aiohttp"},
    "gateway/backends/http.py": {"aiohttp", "yarl"},
    "gateway/backends/http1.py": {"httptools"},
    "gateway/backends/documents.py": {"aiohttp", "yarl"},
    "gateway/backends/openapi.py": {"yarl"},
    "gateway/bundles": set(),
    "gateway/cli": {"typer", "rich"},
    "gateway/config": {"pydantic", "pydantic_core"},
    "gateway/config/source.py": {"yaml"},
    "gateway/core": {"orjson", "jsonschema_rs", "re2"},
    "gateway/core/tokens.py": {"tiktoken"},
    "gateway/examples": set(),
    "gateway/formats": set(),
    "gateway/governance/memory.py": {"orjson"},
    "gateway/openapi": set(),
    "gateway/openapi/reading.py": {"orjson"},
    "gateway/runtime": {"uvicorn"},
    "gateway/runtime/affinity.py": {"aiohttp", "yarl"},
    "gateway/runtime/merging.py": {"aiohttp", "yarl"},
    "gateway/runtime/passing.py": {"aiohttp", "yarl"},
    "gateway/runtime/peer_channel.py": {"aiohttp"},
    "gateway/runtime/peers.py": {"aiohttp", "yarl"},
    "gateway/runtime/settings.py": {"pydantic", "pydantic_settings"},
    "gateway/runtime/wire.py": {"uvicorn", "httptools"},
    "gateway/upstreams": {"orjson"},
    "gateway/upstreams/assertions.py": {"jwt"},
    "gateway/upstreams/auth.py": {"aiohttp", "yarl"},
    "gateway/upstreams/wire.py": {"yarl"},
    "gateway/web": {"orjson", "starlette"},
    "gateway/formats/ecmascript.py": {"tree_sitter", "tree_sitter_javascript", "tree_sitter_typescript"},
    "gateway/formats/json_text.py": {"orjson", "json5"},
    "gateway/formats/markdown_parser.py": {"markdown_it", "linkify_it"},
    "gateway/formats/markdown_tree.py": {"markdown_it"},
    "gateway/formats/path_dialect.py": {"jsonpath"},
    "gateway/formats/path_nodes.py": {"jsonpath"},
    "gateway/formats/python_source.py": {"tree_sitter", "tree_sitter_python"},
    "gateway/formats/source.py": {"tree_sitter"},
    "gateway/formats/toon.py": {"toon_format"},
    "gateway/formats/xml_text.py": {"lxml"},
    "gateway/formats/yaml_text.py": {"yaml"},
    "gateway/storage": {"sqlalchemy", "alembic"},
    "gateway/storage/buckets.py": {"obstore"},
    "gateway/storage/postgres": {"sqlalchemy", "psycopg"},
    "gateway/identity": set(),
    "gateway/identity/key_sets.py": {"jwt"},
    "gateway/identity/key_sources.py": {"aiohttp"},
    "gateway/pytest_plugin.py": {"pytest"},
    "gateway/telemetry": {"orjson"},
    "gateway/telemetry/json_lines.py": {"google", "opentelemetry"},
    "gateway/telemetry/otlp_metrics.py": {"opentelemetry"},
    "gateway/telemetry/otlp_grpc.py": {"grpc"},
    "gateway/telemetry/otlp_http.py": {"aiohttp"},
    "gateway/telemetry/rejections.py": {"google", "opentelemetry"},
}

# Which parts of ourselves a part may import. `gateway` itself (the version) is open to the command line only.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors", "core"},
    "formats": {"errors", "core", "formats"},
    "governance": {"errors", "core", "governance"},
    "approvals": {"errors", "core", "governance", "backends", "approvals"},
    "audit": {"errors", "core", "audit"},
    "bundles": {"errors", "audit", "bundles"},
    "authz": {"errors", "core", "governance", "authz"},
    "identity": {"errors", "governance", "identity"},
    "backends": {"errors", "core", "governance", "openapi", "backends"},
    "openapi": {"errors", "core", "formats", "openapi"},
    "upstreams": {"errors", "core", "governance", "backends", "serving", "web", "upstreams"},
    "limits": {"governance", "limits"},
    "storage": {"errors", "core", "governance", "audit", "limits", "storage"},
    "telemetry": {"errors", "core", "governance", "snapshot", "approvals", "serving", "telemetry"},
    "snapshot": {"core", "governance"},
    "access": {"errors", "core", "governance", "snapshot"},
    "advertising": {"snapshot"},
    "review": {"core", "governance", "snapshot", "access", "review", "vetting"},
    "vetting": {"governance", "vetting"},
    "config": {"errors", "core", "formats", "governance", "snapshot", "openapi", "vetting", "config"},
    "assembly": {"governance", "snapshot", "access", "config", "authz"},
    "cli": {
        "gateway",
        "errors",
        "core",
        "governance",
        "snapshot",
        "access",
        "advertising",
        "vetting",
        "review",
        "config",
        "runtime",
        "identity",
    }
    | {"assembly", "audit", "bundles", "storage", "web", "cli"},
    "pytest_plugin": {"governance", "access", "review", "config", "assembly"},
    "middleware": {"errors", "core", "formats", "governance", "snapshot", "middleware"},
    "serving": {"errors", "core", "governance", "snapshot", "access", "approvals", "audit", "serving"},
    "web": {"errors", "core", "governance", "snapshot", "access", "advertising", "approvals", "serving", "web"},
    "runtime": {
        *("errors", "core", "formats", "governance", "snapshot", "access", "advertising", "assembly", "config"),
        *("identity", "backends", "middleware", "storage", "serving", "web", "runtime"),
        *("approvals", "audit", "bundles", "limits", "openapi", "review", "telemetry", "upstreams"),
    },
    "examples": {"errors", "core", "formats", "examples"},
    "__main__": {"cli"},
    "__init__": {"errors", "core", "formats", "serving"},
}


def imported(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name} uses a relative import"
            names.add(node.module or "")
    return names


def part_of(module: Path) -> str:
    inside = module.relative_to(PACKAGE).parts
    return inside[0].removesuffix(".py")


def allowed_libraries(module: Path) -> set[str]:
    path = module.relative_to(ROOT).as_posix()
    return LIBRARIES[max((key for key in LIBRARIES if path.startswith(key)), key=len)]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.relative_to(ROOT).as_posix())
def test_module_imports_only_what_its_place_allows(module: Path) -> None:
    outside, ours = set(), set()
    for name in imported(module):
        top, _, rest = name.partition(".")
        if top == "gateway":
            ours.add(rest.partition(".")[0] or "gateway")
        elif top not in sys.stdlib_module_names:
            outside.add(top)

    assert outside <= allowed_libraries(module)
    assert ours <= ARROWS[part_of(module)]


def test_every_listed_path_exists() -> None:
    assert [path for path in LIBRARIES if not (ROOT / path).exists()] == []


def test_no_module_grows_past_six_hundred_lines() -> None:
    lengths = {module.name: len(module.read_text(encoding="utf-8").splitlines()) for module in MODULES}

    assert {name: length for name, length in lengths.items() if length > 600} == {}


def test_library_import_pulls_in_no_framework() -> None:
    script = "import sys, gateway; print('\\n'.join(sys.modules))"

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    loaded = {name.partition(".")[0] for name in run.stdout.splitlines()}
    assert loaded.isdisjoint({"starlette", "casbin", "opentelemetry", "typer", "pydantic", "yaml", "lxml", "requests"})
