"""Promises kept by a configuration: what documents can declare, and what is refused at load."""

import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gateway import Registry, Schema, SpooledArtifact, Tool, definition
from gateway.app.project import LoadedProject
from gateway.model.caller import Principal
from gateway.model.provider_formats import ProviderName
from gateway.policy.access_answer import AccessQuestion
from gateway.registries.imported_definition import build_tool_definition
from gateway.registries.snapshot import DeclaredTool, compute_revision
from tests.promises.sample_project import codes, load_with, tool
from tests.promises.scripted_model import BASE_SEVEN

pytestmark = pytest.mark.anyio

PLUG_INS = {"GATEWAY_PYTHON_PACKAGES": "promised_plug_ins"}
OUTCOMES = ("throw", "replace", "keep")


@pytest.fixture(autouse=True)
def plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "plug_ins"))
    monkeypatch.delitem(sys.modules, "promised_plug_ins", raising=False)


def artifact_class(name: str, path: str) -> str:
    return f"""
kind: ArtifactClass
metadata: {{name: {name}, owner: team}}
spec: {{description: Something., class: "{path}"}}
"""


def constructor_of(found: LoadedProject, name: str) -> Any:
    assert found.access is not None, found.diagnostics
    return found.access.snapshot.artifacts[name].constructor


def core_tool(declared: DeclaredTool) -> Tool:
    schema = Schema(dict(declared.input_schema or {}))
    return Tool(
        name=declared.name,
        description=declared.description,
        input_schema=schema,
        handler=print,
        meta=dict(declared.meta),
    )


def test_configured_promise_016_class_is_named_and_loaded(tmp_path: Path) -> None:
    found = load_with(tmp_path, artifact_class("repeats", "promised_plug_ins:Repeating"), environ=PLUG_INS)

    assert issubclass(constructor_of(found, "repeats"), SpooledArtifact)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("promised_plug_ins:Missing", "entrypoint-missing"),
        ("promised_plug_ins.nowhere:Missing", "entrypoint-missing"),
        ("promised_plug_ins:NotOne", "not-an-artifact-class"),
        ("somewhere_else:Repeating", "package-not-allowed"),
    ],
)
def test_configured_promise_017_missing_or_wrong_class_fails_at_load(tmp_path: Path, path: str, code: str) -> None:
    found = load_with(tmp_path, artifact_class("bad", path), environ=PLUG_INS)

    assert codes(found) == [code]
    assert found.access is None


def test_configured_promise_019_media_class_is_refused_with_the_code_of_tools(tmp_path: Path) -> None:
    found = load_with(tmp_path, artifact_class("bad", "promised_plug_ins:Picture"), environ=PLUG_INS)

    [problem] = found.diagnostics
    assert problem.code == "not-an-artifact-class"
    assert "E_INVALID_INITIAL_TOOL_VALUE" in problem.message


@pytest.mark.parametrize("left_out", ["kind", "mimeType", "filename", "trustTier", "hazard"])
def test_configured_promise_022_media_output_needs_all_five(tmp_path: Path, left_out: str) -> None:
    media = {
        "kind": "image",
        "mimeType": "image/png",
        "filename": "a.png",
        "trustTier": "first-party",
        "hazard": "inert",
    }
    given = ", ".join(f"{key}: {value}" for key, value in media.items() if key != left_out)

    found = load_with(tmp_path, tool("draw", more=f"  output: {{media: {{{given}}}}}"))

    [problem] = found.diagnostics
    assert problem.code == "missing-field"
    assert left_out in problem.message


async def test_configured_promise_055_repeated_query_is_one_tool(tmp_path: Path) -> None:
    found = load_with(tmp_path, artifact_class("repeats", "promised_plug_ins:Repeating"), environ=PLUG_INS)

    methods = constructor_of(found, "repeats").effective_methods()

    assert sorted(each.name for each in methods) == sorted(BASE_SEVEN)


async def test_configured_promise_056_plug_in_class_gets_the_base_seven(tmp_path: Path) -> None:
    found = load_with(tmp_path, artifact_class("binary", "promised_plug_ins:Binary"), environ=PLUG_INS)

    methods = {each.name for each in constructor_of(found, "binary").effective_methods()}

    assert methods == {*BASE_SEVEN, "artifact_raw"}


def test_configured_promise_058_query_tool_is_no_artifact_class(tmp_path: Path) -> None:
    found = load_with(tmp_path, artifact_class("bad", "promised_plug_ins:Query"), environ=PLUG_INS)

    assert codes(found) == ["not-an-artifact-class"]


def test_configured_promise_072_two_tools_of_one_name_are_an_error(tmp_path: Path) -> None:
    found = load_with(tmp_path, tool("order_read"))

    assert codes(found) == ["duplicate-name"]
    assert found.access is None


def test_configured_promise_075_clash_carries_the_code_of_registries(tmp_path: Path) -> None:
    [problem] = load_with(tmp_path, tool("order_read")).diagnostics

    assert "E_TOOL_ALREADY_REGISTERED" in problem.message


@pytest.mark.parametrize(("own", "option"), list(product(OUTCOMES, OUTCOMES)))
def test_configured_promise_076_merge_asks_the_incoming_tool(tmp_path: Path, own: str, option: str) -> None:
    """The upstream's tool exists first; the declared tool of the same name is the incoming one."""
    expected = option if own == "throw" else own
    documents = (
        tool("shop_sell", more=f"  onCollision: {own}").replace("lifecycle: draft", "lifecycle: active"),
        """
kind: Upstream
metadata: {name: shop, owner: team}
spec:
  transport: {type: streamable-http, url: "http://127.0.0.1:9001/mcp"}
  import: {include: ["*"], trust: {tier: internal, flags: []}}
""",
        f"""
kind: CollisionPolicy
metadata: {{name: seed, owner: team}}
spec: {{onCollision: {option}, honourTool: always, order: [upstreams, tools]}}
""",
        """
kind: Catalogue
metadata: {name: shop, owner: team}
spec:
  audience: [role:clerk]
  collisionPolicy: seed
  include: [{tools: [shop_sell]}, {upstreams: [shop]}]
  publish: {path: /shop}
""",
    )

    found = load_with(tmp_path, *documents, imports=[build_tool_definition("shop", "sell", "Sells.", is_pinned=True)])

    if expected == "throw":
        assert "name-collision" in codes(found)
        assert found.access is None
    else:
        assert found.access is not None, found.diagnostics
        winner = {"replace": "shop_sell", "keep": "shop.sell"}[expected]
        assert dict(found.access.snapshot.catalogues["shop"].tools) == {"shop_sell": winner}


def test_configured_promise_077_baseline_is_never_mutated(tmp_path: Path) -> None:
    found = load_with(tmp_path)
    assert found.access is not None
    snapshot = found.access.snapshot
    before = compute_revision(snapshot, [])
    case = snapshot.cases[0]

    for amount in range(50):
        arguments = {"order": "A1", "amount": amount * 20, "extra": [amount]}
        found.access.decide_call(AccessQuestion(case.principal, "desk", "refund_pay", case.at, arguments))
        found.access.list_tools(Principal("user:ana"), "desk", at=case.at)

    assert compute_revision(snapshot, []) == before
    with pytest.raises(TypeError):
        snapshot.tools["intruder"] = snapshot.tools["order_read"]  # type: ignore[index]


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini", "mcp"])
def test_configured_promise_086_model_sees_name_description_and_schema(tmp_path: Path, provider: ProviderName) -> None:
    found = load_with(tmp_path, tool("probe", more="  meta: {rbac: {scopes: [secret.scope]}}"))
    assert found.access is not None, found.diagnostics

    text = str(definition(core_tool(found.access.snapshot.tools["probe"]), provider))

    assert "probe" in text
    assert "Does probe." in text
    assert not any(word in text for word in ("secret.scope", "127.0.0.1", "internal", "handler"))


def test_configured_promise_087_other_names_are_accepted_with_a_warning(tmp_path: Path) -> None:
    found = load_with(tmp_path, tool("readOrder"))

    [warning] = found.diagnostics
    assert (warning.code, warning.severity, warning.help) == ("name-style", "warning", "consider 'read_order'")
    assert found.access is not None
    assert "readOrder" in found.access.snapshot.tools


@pytest.mark.parametrize("schema", ["{type: string}", "{type: [object, string]}", "{}", "{type: array}"])
def test_configured_promise_088_schema_must_describe_an_object(tmp_path: Path, schema: str) -> None:
    found = load_with(tmp_path, tool("odd").replace("{type: object}", schema))

    assert codes(found) == ["wrong-value"]


def test_configured_promise_089_annotations_reach_the_definition(tmp_path: Path) -> None:
    schema = """{type: object, properties: {size: {type: string, description: How large., enum: [s, m],
      default: m, examples: [s]}}}"""
    found = load_with(tmp_path, tool("annotated").replace("{type: object}", schema))
    assert found.access is not None, found.diagnostics

    described = definition(core_tool(found.access.snapshot.tools["annotated"]), "mcp")

    assert described["inputSchema"]["properties"]["size"] == {
        "type": "string",
        "description": "How large.",
        "enum": ["s", "m"],
        "default": "m",
        "examples": ["s"],
    }


def test_configured_promise_098_meta_is_kept_and_not_interpreted(tmp_path: Path) -> None:
    more = '  meta: {rbac: {scopes: [tickets.write]}, trusted: true, tier: quarantine, "odd key": 1}'
    plain = load_with(tmp_path / "plain", tool("probe"))
    found = load_with(tmp_path / "meta", tool("probe", more=more))
    assert plain.access is not None
    assert found.access is not None, found.diagnostics

    probe = found.access.snapshot.tools["probe"]

    assert Registry(dict(probe.meta)).get("rbac.scopes") == ["tickets.write"]
    assert probe.trust == plain.access.snapshot.tools["probe"].trust


def test_configured_promise_099_three_flags_reach_the_tool(tmp_path: Path) -> None:
    more = "  ephemeral: true\n  onCollision: replace"
    trusting = tool("probe", more=more).replace("{tier: internal, ", "{tier: internal, trusted: true, ")
    found = load_with(tmp_path, trusting)
    assert found.access is not None, found.diagnostics

    probe = found.access.snapshot.tools["probe"]

    assert (probe.trust.trusted, probe.ephemeral, probe.on_collision) == (True, True, "replace")
