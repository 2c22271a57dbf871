"""The layout of the package, read from the source: who imports what, how modules are named, how long they are."""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "gateway"
MODULES = sorted(PACKAGE.rglob("*.py"))

# Outside libraries a folder or file may import; the most specific path wins.
LIBRARIES: dict[str, set[str]] = {
    "gateway": set(),
    "gateway/app/cluster": {"aiohttp", "yarl"},
    "gateway/app/settings.py": {"pydantic", "pydantic_settings"},
    "gateway/artifacts/formats/json_artifact.py": {"orjson", "json5"},
    "gateway/artifacts/formats/javascript_jsonpath.py": {"jsonpath"},
    "gateway/artifacts/formats/jsonpath_nodes.py": {"jsonpath"},
    "gateway/artifacts/formats/markdown_parser.py": {"markdown_it", "linkify_it"},
    "gateway/artifacts/formats/markdown_tree.py": {"markdown_it"},
    "gateway/artifacts/formats/toon_artifact.py": {"toon_format"},
    "gateway/artifacts/formats/xml_parser.py": {"lxml"},
    "gateway/artifacts/formats/yaml_parser.py": {"yaml"},
    "gateway/artifacts/javascript_regex.py": {"re2"},
    "gateway/audit": {"orjson"},
    "gateway/audit/signing_keys.py": {"cryptography"},
    "gateway/backends/mcp": {"orjson"},
    "gateway/backends/mcp/credentials.py": {"jwt"},
    "gateway/backends/openapi/document.py": {"orjson"},
    "gateway/backends/python/worker_script.py": {"opentelemetry"},
    "gateway/cli": {"typer", "rich"},
    "gateway/config": {"pydantic", "pydantic_core"},
    "gateway/config/yaml/parser.py": {"yaml"},
    "gateway/http_client/http1.py": {"httptools"},
    "gateway/http_client/session.py": {"aiohttp", "yarl"},
    "gateway/identity/key_sets.py": {"aiohttp", "jwt"},
    "gateway/mcp/messages.py": {"orjson"},
    "gateway/model": {"orjson", "jsonschema_rs"},
    "gateway/model/tokenizer.py": {"tiktoken"},
    "gateway/policy/casbin/enforcer.py": {"casbin"},
    "gateway/policy/rules/turn_state.py": {"orjson"},
    "gateway/pytest_plugin.py": {"pytest"},
    "gateway/review/report/page.py": {"jinja2", "markupsafe"},
    "gateway/server": {"orjson", "starlette"},
    "gateway/server/http/listener.py": {"uvicorn"},
    "gateway/server/http/http1_protocol.py": {"uvicorn", "httptools"},
    "gateway/server/http/request_cycle.py": {"uvicorn"},
    "gateway/storage/blobs/s3_client.py": {"obstore"},
    "gateway/storage/sql": {"sqlalchemy"},
    "gateway/storage/sql/migrations": {"sqlalchemy", "alembic"},
    "gateway/storage/sql/postgres": {"sqlalchemy", "psycopg", "orjson"},
    "gateway/telemetry": {"opentelemetry"},
    "gateway/telemetry/export/delivery.py": {"google", "opentelemetry"},
    "gateway/telemetry/export/otlp_transports.py": {"aiohttp", "google", "grpc", "opentelemetry"},
    "gateway/telemetry/export/prometheus_text.py": {"google", "opentelemetry", "orjson"},
}

# Which other packages a package may import. `gateway` itself (the version) is open to the command line only.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "lazy": set(),
    "model": {"errors"},
    "mcp": {"errors", "model"},
    "artifacts": {"errors", "model"},
    "registries": {"errors", "model"},
    "policy": {"errors", "model", "registries"},
    "http_client": {"errors", "mcp", "model"},
    "identity": {"errors", "http_client", "model", "policy"},
    "backends": {"errors", "artifacts", "http_client", "mcp", "model"},
    "approvals": {"errors", "backends", "http_client", "model"},
    "audit": {"errors"},
    "storage": {"errors", "approvals", "artifacts", "audit", "model", "policy"},
    "config": {"errors", "artifacts", "backends", "model", "policy", "registries"},
    "engine": {"errors", "approvals", "artifacts", "audit", "mcp", "model", "policy", "registries", "storage"},
    "telemetry": {"errors", "approvals", "engine", "http_client", "model", "registries", "storage"},
    "server": {"errors", "approvals", "artifacts", "engine", "mcp", "model", "policy", "registries", "storage"},
    "review": {"errors", "audit", "model", "policy", "registries"},
    "app": {
        *("errors", "approvals", "artifacts", "audit", "backends", "config", "engine", "http_client"),
        *("identity", "mcp", "model", "policy", "registries", "review", "server", "storage", "telemetry"),
    },
    "cli": {
        *("gateway", "errors", "app", "approvals", "audit", "config", "http_client", "identity"),
        *("model", "policy", "registries", "review", "server", "storage"),
    },
    "pytest_plugin": {"app", "config", "policy", "registries", "review"},
    "examples": {"errors", "artifacts"},
    "__main__": {"cli"},
    "__init__": {"errors", "artifacts", "engine", "model"},  # the library
}

# Imports against the arrows that are still there. This set may only shrink.
AGAINST_THE_ARROWS: set[tuple[str, str]] = {
    ("gateway/registries/policy_cases.py", "policy"),
    ("gateway/registries/snapshot.py", "policy"),
}

# Libraries and names that make an HTTP client, and the modules outside `http_client` that use one, with the reason.
CLIENT_LIBRARIES = {"grpc", "httpx", "obstore", "requests", "urllib.request", "urllib3"}
CLIENT_NAMES = {
    *("aiohttp.ClientSession", "aiohttp.BaseConnector", "aiohttp.TCPConnector", "aiohttp.UnixConnector"),
    *("http.client.HTTPConnection", "http.client.HTTPSConnection", "ssl.create_default_context"),
    *("loop.create_connection", "loop.create_unix_connection"),
}
OTHER_CLIENTS: dict[str, str] = {
    "gateway/app/cluster/proxy.py": "passes the connector of a channel on to `HttpSession`",
    "gateway/app/cluster/peer_connector.py": "connects to processes of the gateway and proves its key before HTTP",
    "gateway/storage/blobs/s3_client.py": "obstore has its own client; its time limits are options",
    "gateway/telemetry/export/otlp_transports.py": "gRPC is not HTTP/1.1 and has its own channel, without redirects",
}

PACKAGES = sorted(each.name for each in PACKAGE.iterdir() if (each / "__init__.py").exists())

# The command is loaded from its module: its name is that of the function.
PAST_THE_DOOR: dict[str, set[str]] = {"gateway/__main__.py": {"gateway.cli.main"}}

LIBRARY = PACKAGE / "__init__.py"
"""The door of the library: it lists names of all packages."""

# Names that end in -ing or -ed and are nouns of the field. This set may only shrink.
NOUNS = {
    *("argument_mapping", "audit_settings", "pricing", "provider_settings", "settings", "v0011_sightings"),
}

# Modules of more than 450 lines. This set may only shrink.
LONG: set[str] = {
    "gateway/engine/gates/guard.py",
    "gateway/errors.py",
    "gateway/policy/access.py",
}


@cache
def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def imports(module: Path) -> Iterator[str]:
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.name} uses a relative import"
            yield node.module or ""


def package_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(module: Path) -> str:
    return module.relative_to(ROOT).as_posix()


def allowed_libraries(module: Path) -> set[str]:
    path = name_of(module)
    return LIBRARIES[max((key for key in LIBRARIES if path.startswith(key)), key=len)]


def own_imports(module: Path) -> set[str]:
    """Return the other gateway packages a module imports. `lazy` has no arrow: it is part of every package's door."""
    ours = {name for name in imports(module) if name.partition(".")[0] == "gateway"}
    return {name.split(".")[1] if "." in name else "gateway" for name in ours} - {package_of(module), "lazy"}


def makes_http_client(module: Path) -> bool:
    nodes = list(ast.walk(tree_of(module)))
    names = {
        f"{node.module}.{alias.name}" for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    names |= {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    return bool(names & CLIENT_NAMES or set(imports(module)) & CLIENT_LIBRARIES)


def public_names(package: str) -> set[str]:
    """Return the names that the door of a package lists."""
    tree = ast.parse((PACKAGE / package / "__init__.py").read_text(encoding="utf-8"))
    listed = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    return {alias.name for node in listed if isinstance(node, ast.ImportFrom) for alias in node.names}


def names_taken(package: str) -> set[str]:
    """Return the names that other packages import from a package."""
    return {
        alias.name
        for module in MODULES
        if package_of(module) != package
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.ImportFrom) and node.module == f"gateway.{package}"
        for alias in node.names
    }


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_module_imports_only_what_its_place_allows(module: Path) -> None:
    outside = {name.partition(".")[0] for name in imports(module)} - {"gateway", *sys.stdlib_module_names}
    against = own_imports(module) - ARROWS[package_of(module)]

    assert outside <= allowed_libraries(module)
    assert {(name_of(module), package) for package in against} <= AGAINST_THE_ARROWS


def test_http_clients_are_created_in_one_package() -> None:
    found = {name_of(each) for each in MODULES if package_of(each) != "http_client" and makes_http_client(each)}

    assert found == OTHER_CLIENTS.keys()


def test_exceptions_from_the_arrows_are_still_needed() -> None:
    found = {(name_of(each), package) for each in MODULES for package in own_imports(each) - ARROWS[package_of(each)]}

    assert AGAINST_THE_ARROWS - found == set()


@pytest.mark.parametrize("module", [each for each in MODULES if each != LIBRARY], ids=name_of)
def test_module_imports_other_packages_through_their_doors(module: Path) -> None:
    past = {
        name
        for name in imports(module)
        if name.count(".") > 1 and name.startswith("gateway.") and name.split(".")[1] != package_of(module)
    }

    assert past <= PAST_THE_DOOR.get(name_of(module), set())


@pytest.mark.parametrize("package", PACKAGES)
def test_door_lists_the_names_that_other_packages_use(package: str) -> None:
    modules = {each.stem for each in MODULES if each.parent == PACKAGE / package}

    assert names_taken(package) - modules == public_names(package)


def test_every_name_of_a_door_can_be_imported() -> None:
    for package in PACKAGES:
        door = import_module(f"gateway.{package}")
        assert all(hasattr(door, name) for name in public_names(package))
        assert not hasattr(door, "no_such_name")


def test_arrows_have_no_cycle() -> None:
    below = {package: set(allowed) - {"gateway"} for package, allowed in ARROWS.items()}
    while below:
        lowest = {package for package, allowed in below.items() if not allowed & below.keys()}
        assert lowest, f"these packages import each other: {sorted(below)}"
        below = {package: allowed for package, allowed in below.items() if package not in lowest}


def test_every_listed_path_exists() -> None:
    assert [path for path in LIBRARIES if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("folder", sorted({each.parent for each in MODULES}), ids=name_of)
def test_package_documents_its_purpose(folder: Path) -> None:
    text = (folder / "__init__.py").read_text(encoding="utf-8")

    assert ast.get_docstring(ast.parse(text))


def test_modules_are_named_by_nouns() -> None:
    named = {each.stem for each in MODULES if re.search(r"(ings?|ed)$", each.stem)}

    assert named == NOUNS


def test_no_folder_has_more_than_twenty_modules() -> None:
    counts = Counter(each.parent for each in MODULES if each.stem != "__init__")

    assert {name_of(folder): count for folder, count in counts.items() if count > 20} == {}


def test_modules_are_short_enough_to_be_read_in_one_sitting() -> None:
    lengths = {name_of(each): len(each.read_text(encoding="utf-8").splitlines()) for each in MODULES}

    assert {name for name, length in lengths.items() if length > 450} == LONG


def test_class_names_are_defined_once() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for each in MODULES:
        for node in tree_of(each).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].add(name_of(each))

    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_library_import_pulls_in_no_framework() -> None:
    script = "import sys, gateway; print('\\n'.join(sys.modules))"

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    loaded = {name.partition(".")[0] for name in run.stdout.splitlines()}
    assert loaded.isdisjoint({"starlette", "casbin", "opentelemetry", "typer", "pydantic", "yaml", "lxml", "requests"})
