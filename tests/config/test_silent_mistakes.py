"""Mistakes that are easy to miss: a role that nothing grants, an argument that no tool takes, a rule about no call.

Each is a warning of `gateway check`, with a position and a suggestion; projects without such mistakes get no warning.
"""

import json
import random
import shutil
from collections.abc import Collection, Mapping
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.app.project import LoadedProject, ProjectFolders, load_project
from gateway.cli.main import app
from gateway.config.reports.diagnostic_codes import CODES
from gateway.registries.imported_definition import build_tool_definition
from tests.config.linking.projects import (
    INSTALLATION,
    NAMES,
    STAGES,
    TRUST,
    catalogue,
    document,
    linked,
    list_codes,
    problem,
    tool,
    upstream,
)
from tests.support.paths import ROOT

SMALL = ROOT / "tests/projects/small"
TODAY = date(2026, 11, 16)
NEW = frozenset(
    {"unknown-role", "unknown-argument", "argument-type", "argument-value", "constant-condition", "idle-rule"}
)
RATE = {"type": "rate", "limit": 5, "per": "1m"}


def rule(name: str = "rule", *, match: Mapping[str, Any], when: str | None = None, **spec: Any) -> str:
    narrowed = {} if when is None else {"when": when}
    return document("GateRule", name, {"description": "A rule.", "match": match, "check": RATE, **narrowed, **spec})


def check_small(folder: Path, *, files: Mapping[str, str] | None = None, roles: str = "") -> LoadedProject:
    """The small project with some files replaced, and additional policy rows about roles."""
    shutil.copytree(SMALL, folder, dirs_exist_ok=True)
    for name, text in (files or {}).items():
        (folder / "configs" / name).write_text(text, encoding="utf-8")
    if roles:
        with (folder / "policies/roles.csv").open("a", encoding="utf-8") as rows:
            rows.write(roles)
    return load_project(ProjectFolders(folder / "configs", folder / "policies"), environ={"TOKEN": "x"}, today=TODAY)


def list_hints(assembled: LoadedProject, code: str) -> dict[str, str | None]:
    return {each.message: each.help for each in assembled.diagnostics if each.code == code}


@pytest.mark.parametrize("environment", [None, "dev", "desk", "operator", "prod"])
def test_shipped_example_has_none_of_them(environment: str | None) -> None:
    assembled = load_project(ProjectFolders.from_folder(ROOT), environ={}, today=TODAY, environment=environment)

    assert NEW.isdisjoint(each.code for each in assembled.diagnostics)


def test_starter_has_none_of_them() -> None:
    assembled = load_project(
        ProjectFolders.from_folder(ROOT / "gateway/cli/templates/project"), environ={}, today=TODAY
    )

    assert assembled.diagnostics == ()


def test_every_new_code_is_explained() -> None:
    for code in NEW:
        answer = CliRunner().invoke(app, ["explain", code])
        assert answer.exit_code == 0
        assert CODES[code] in answer.output


@pytest.mark.parametrize("output", ["text", "json", "github", "sarif", "junit"])
def test_every_format_has_the_position_and_the_suggestion(output: str, tmp_path: Path) -> None:
    gates = (SMALL / "configs/gates.yaml").read_text().replace("args.amount", "args.amuont")
    check_small(tmp_path, files={"gates.yaml": gates})

    answer = CliRunner().invoke(app, ["check", str(tmp_path), "--output", output], env={"TOKEN": "x"})
    strict = CliRunner().invoke(app, ["check", str(tmp_path), "--strict"], env={"TOKEN": "x"})

    assert (answer.exit_code, strict.exit_code) == (0, 1)
    for expected in ("unknown-argument", "amuont", "gates.yaml"):
        assert expected in answer.output
    assert "did you mean" in answer.output
    if output == "json":
        (only,) = json.loads(answer.output)
        assert (only["line"], only["column"], only["severity"]) == (7, 14, "warning")


def test_hundreds_of_misspelt_roles_are_all_reported(tmp_path: Path) -> None:
    choose = random.Random(1)
    granted = ["clerk", "lead", "finance-lead", "support", "platform", "release-manager"]
    slips = {slip for _ in range(5_000) if (slip := _misspell(choose, choose.choice(granted))) not in granted and slip}
    names = sorted(f"role:{slip}" for slip in slips)
    texts = [
        catalogue(f"desk{number}", audience=[name, "role:clerk"], publish={"path": f"/desk{number}"})
        for number, name in enumerate(names)
    ]
    approvals = [
        rule(
            f"rule{number}",
            match={"tools": ["refund_pay"]},
            check={"type": "approval", "from": ["role:lead", name], "timeout": "5m", "reason": "x"},
        )
        for number, name in enumerate(names[:200])
    ]
    conditions = [
        rule(f"when{number}", match={"tools": ["refund_pay"]}, when=f"caller.roles.exists(r, r == {json.dumps(name)})")
        for number, name in enumerate(names[:200])
    ]
    rows = "".join(f"g, user:u{number}, role:{name}\n" for number, name in enumerate(granted))

    assembled = check_small(tmp_path, files={"more.yaml": "---\n".join([*texts, *approvals, *conditions])}, roles=rows)

    assert not assembled.has_errors, [each for each in assembled.diagnostics if each.is_error][:3]
    reported = [each for each in assembled.diagnostics if each.code == "unknown-role"]
    assert len(names) > 400
    assert len(reported) == len(names) + 400
    assert {each.message for each in reported} == {f"nothing grants the role {name!r}" for name in names}
    assert all(each.help and each.severity == "warning" for each in reported)
    assert sum((each.help or "").startswith("did you mean 'role:") for each in reported) >= 15


@pytest.mark.parametrize(
    "name", ["role:clerk ", " role:clerk", "role:сlerk", "role:clerk\u200b", "Role:clerk", "role: clerk", "role:"]
)
def test_role_with_space_or_another_alphabet_is_refused_where_it_stands(name: str, tmp_path: Path) -> None:
    text = catalogue("desk2", audience=[name], publish={"path": "/desk2"})

    assembled = check_small(tmp_path, files={"more.yaml": text})

    assert any(each.position.file.endswith("more.yaml") for each in assembled.diagnostics)


def test_role_of_any_source_is_granted(tmp_path: Path) -> None:
    providers = [
        document("IdentityProvider", "one", {"type": "none", "subject": "user:x", "roles": ["role:of-none"]}),
        document(
            "IdentityProvider",
            "two",
            {"type": "token", "tokens": [_token("user:y", roles=["role:of-token"])]},
        ),
        document("IdentityProvider", "three", _issuer({"staff": "role:of-claim"})),
        document(
            "Overlay",
            "abroad",
            {
                "environment": "abroad",
                "patches": [
                    {
                        "target": {"kind": "IdentityProvider", "name": "three"},
                        "merge": {"roles": {"map": {"x": "role:of-overlay"}}},
                    }
                ],
            },
        ),
    ]
    rows = "g, role:of-claim, role:of-link\ng, user:z, role:of-member\n"
    names = ["role:of-none", "role:of-token", "role:of-claim", "role:of-overlay", "role:of-link", "role:of-member"]
    text = catalogue("desk2", audience=[*names, "role:agent", "user:whoever"], publish={"path": "/desk2"})

    assembled = check_small(tmp_path, files={"more.yaml": "---\n".join([*providers, text])}, roles=rows)

    assert not assembled.has_errors, assembled.diagnostics
    assert list_hints(assembled, "unknown-role") == {}


def test_role_that_only_an_overlay_of_the_audience_names_is_not_granted(tmp_path: Path) -> None:
    patch = {"target": {"kind": "Catalogue", "name": "desk"}, "merge": {"audience": ["role:clrek"]}}
    overlay = document("Overlay", "prod", {"environment": "prod", "patches": [patch]})
    shutil.copytree(SMALL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "configs/more.yaml").write_text(overlay)
    project = ProjectFolders(tmp_path / "configs", tmp_path / "policies")

    assembled = load_project(project, environ={"TOKEN": "x"}, today=TODAY, environment="prod")

    assert list_hints(assembled, "unknown-role") == {
        "nothing grants the role 'role:clrek'": "did you mean 'role:clerk'?"
    }


def test_part_of_a_role_in_a_condition_is_no_role(tmp_path: Path) -> None:
    texts = [
        rule(f"rule{number}", match={"tools": ["refund_pay"]}, when=when)
        for number, when in enumerate(
            (
                'caller.roles.exists(r, r.startsWith("role:fin"))',
                'caller.roles.exists(r, glob(r, "role:*-lead"))',
                '"role:clerk" in caller.roles && args.order != "role"',
            )
        )
    ]

    assembled = check_small(tmp_path, files={"more.yaml": "---\n".join(texts)})

    assert assembled.diagnostics == ()


def test_role_from_the_environment_is_not_shown(tmp_path: Path) -> None:
    texts = [
        catalogue("desk2", audience=["${WHO}"], publish={"path": "/desk2"}),
        rule("rule2", match={"tools": ["refund_pay"]}, when='"${WHO}" in caller.roles || args.${WHAT} > 1'),
    ]
    shutil.copytree(SMALL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "configs/more.yaml").write_text("---\n".join(texts))
    environ = {"TOKEN": "x", "WHO": "role:s3cr3t", "WHAT": "s3cr3t"}

    assembled = load_project(ProjectFolders(tmp_path / "configs", tmp_path / "policies"), environ=environ, today=TODAY)

    codes = [each.code for each in assembled.diagnostics]
    assert sorted(codes) == ["unknown-argument", "unknown-role", "unknown-role"]
    assert "s3cr3t" not in str(assembled.diagnostics)


def test_roles_are_not_judged_while_a_row_or_a_document_cannot_be_read(tmp_path: Path) -> None:
    text = catalogue("desk2", audience=["role:nobody"], publish={"path": "/desk2"})

    assembled = check_small(tmp_path, files={"more.yaml": text}, roles="g, broken\n")

    assert assembled.has_errors
    assert list_hints(assembled, "unknown-role") == {}


@pytest.mark.parametrize(
    ("match", "message", "help"),
    [
        ({"tools": ["ordr_*"]}, "the rule matches no tool", "did you mean 'order_read'?"),
        ({"labels": {"system": "odrers"}}, "the rule matches no tool", "did you mean 'orders'?"),
        ({"labels": {"sytsem": "orders"}}, "the rule matches no tool", "did you mean 'system'?"),
        ({"upstreams": ["wikki*"]}, "the rule matches no tool", "did you mean 'wiki'?"),
        ({"tiers": ["outer"]}, "the rule matches no tool", "correct spec.match, or remove the rule"),
        (
            {"tools": ["order_read"], "upstreams": ["wiki"]},
            "the rule matches no tool: no tool matches all criteria ('tools' matches 1, 'upstreams' matches 1)",
            "correct spec.match, or remove the rule",
        ),
        (
            {"tools": ["order_*"], "artifacts": ["json"]},
            "the rule matches no tool: no tool matches 'artifacts'",
            "correct spec.match, or remove the rule",
        ),
        (
            {"tools": ["order_*", "refnud_*"]},
            "'refnud_*' matches no tool, so this pattern has no effect",
            "correct or remove it",
        ),
        (
            {"tools": ["order_read"], "catalogues": ["other"]},
            "the rule matches no tool of its catalogues, so it never applies",
            "its tools are published by desk",
        ),
    ],
)
def test_matcher_that_chooses_nothing_states_why(match: dict[str, Any], message: str, help: str) -> None:
    found = linked(
        tool("order_read", labels={"system": "orders"}),
        upstream(),
        catalogue(include=[{"tools": ["order_read"]}]),
        catalogue("other", include=[{"upstreams": ["wiki"]}]),
        rule(match=match),
        imports=[build_tool_definition("wiki", "search", is_pinned=True)],
    )

    idle_rule = problem(found, "idle-rule")
    assert (idle_rule.message, idle_rule.help, idle_rule.severity) == (message, help, "warning")


def test_shown_argument_that_no_tool_takes_is_reported_through_references_and_open_schemas() -> None:
    referred = {"type": "object", "allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"properties": {"order": {}}}}}
    opened = {"type": "object", "properties": {"order": {"type": "string"}}, "additionalProperties": True}
    approval = {"type": "approval", "from": ["role:clerk"], "timeout": "5m", "reason": "x"}

    def shown(schema: dict[str, Any], *names: str) -> list[tuple[str, str, str | None]]:
        gate = rule(match={"tools": ["order_read"]}, check={**approval, "show": list(names)})
        found = linked(tool(input={"schema": schema}), catalogue(), gate)
        return [(each.code, each.severity, each.help) for each in found.diagnostics]

    assert shown(referred, "order") == []
    assert shown(referred, "odrer") == [("unknown-argument", "error", "did you mean 'order'?")]
    assert shown(opened, "order", "other") == []
    assert shown(opened, "odrer") == [("unknown-argument", "warning", "did you mean 'order'?")]


def test_rule_for_unknown_tools_or_drafts_is_not_idle() -> None:
    draft = tool("draft_tool", lifecycle="draft")
    texts = [catalogue(), catalogue("other", include=[{"tools": ["order_read"]}]), tool(), draft]
    unseen = rule("unseen", match={"upstreams": ["wiki"], "catalogues": ["other"]}, when="args.amuont > 5")
    drafted = rule("drafted", match={"tools": ["draft_tool"], "catalogues": ["other"]})

    assert NEW.isdisjoint(list_codes(linked(*texts, upstream(), unseen, drafted)))


def test_thousands_of_matchers_agree_with_what_is_chosen() -> None:
    """Generated matchers are reported if, and only if, they choose no tool of the catalogues."""
    choose = random.Random(4)
    tools: dict[str, dict[str, Any]] = {
        f"{system}_{verb}": {"labels": {"system": system}, "flags": flags}
        for system, verb, flags in (
            ("order", "read", ["private-data"]),
            ("order", "write", ["writes"]),
            ("mail", "send", ["egress"]),
            ("wiki", "find", []),
        )
    }
    documents = [
        tool(name, labels=each["labels"], trust={"tier": "inner", "flags": each["flags"]})
        for name, each in tools.items()
    ]
    shops = [
        catalogue("desk", include=[{"tools": ["order_*"]}]),
        catalogue("post", include=[{"tools": ["mail_*", "wiki_*"]}]),
    ]
    rules: list[str] = []
    idle: set[str] = set()
    for number in range(1_200):
        match: dict[str, Any] = {}
        if choose.random() < 0.7:
            match["tools"] = [choose.choice(["order_*", "*_read", "mail_send", "wiki_find", "o*e", "*", "zzz_*"])]
        if choose.random() < 0.4 or not match:
            match["labels"] = {"system": choose.choice(["order", "mail", "wiki", "ordre"])}
        if choose.random() < 0.3:
            match["catalogues"] = [choose.choice(["desk", "post"])]
        name = f"rule-{number}"
        rules.append(rule(name, match=match))
        if not _is_chosen(match, tools):
            idle.add(name)

    found = linked(*documents, *shops, *rules)

    assert 200 < len(idle) < 1_000
    lines = {each.position.line for each in found.diagnostics if each.code == "idle-rule"}
    by_line = dict(enumerate(_lines(documents, shops, rules), 1))
    reported = {json.loads(by_line[line])["metadata"]["name"] for line in lines}
    assert reported == idle


def _lines(*texts: Collection[str]) -> list[str]:
    every = [each for group in (INSTALLATION, TRUST, NAMES, STAGES, *texts) for each in group]
    return "---\n".join(every).split("\n")


def _is_chosen(match: Mapping[str, Any], tools: Mapping[str, Any]) -> bool:
    published = {"desk": ("order_",), "post": ("mail_", "wiki_")}
    places = match.get("catalogues", list(published))
    return any(
        all(fnmatchcase(name, pattern) for pattern in match.get("tools", ["*"]))
        and all(each["labels"].get(key) == value for key, value in match.get("labels", {}).items())
        and any(name.startswith(published[place]) for place in places)
        for name, each in tools.items()
    )


def test_generated_projects_without_a_mistake_are_silent(tmp_path: Path) -> None:
    choose = random.Random(9)
    for number in range(25):
        assembled = check_small(tmp_path / str(number), files={"more.yaml": _sound_project(choose)}, roles=_ROWS)

        assert not assembled.has_errors, [each for each in assembled.diagnostics if each.is_error][:3]
        assert NEW.isdisjoint(each.code for each in assembled.diagnostics), [
            each for each in assembled.diagnostics if each.code in NEW
        ]


_ROWS = "".join(f"g, user:u{number}, role:r{number}\n" for number in range(20))


def _sound_project(choose: random.Random) -> str:
    """Tools with arguments of every type, and rules, audiences and approvers that name only existing ones."""
    types: dict[str, tuple[dict[str, Any], list[str]]] = {
        "text": ({"type": "string"}, ['== "x"', '!= ""', '.startsWith("a")', 'in ["a", "b"]', "!= caller.subject"]),
        "whole": ({"type": "integer"}, ["> 5", "== 0", "<= -3", "in [1, 2]", "* 2 < 100"]),
        "number": ({"type": "number", "minimum": 0}, ["> 0.5", "== 5", ">= 0"]),
        "flag": ({"type": "boolean"}, ["", "== true", "!= false"]),
        "choice": ({"enum": ["low", "high"]}, ['== "low"', 'in ["low", "high"]', '!= "high"']),
        "list": (
            {"type": "array", "items": {"type": "string"}},
            ['.exists(e, e == "x")', ".all(e, size(e) < 5)", "[0] == 'x'"],
        ),
        "maybe": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ['== "x"', "== null"]),
        "inner": ({"type": "object", "properties": {"deep": {"type": "integer"}}}, [".deep > 5", '["deep"] == 2']),
        "open": ({"type": "object", "additionalProperties": True}, [".whatever == 5", '["a"].b == "x"']),
    }
    texts: list[str] = []
    for number in range(choose.randint(2, 6)):
        chosen = choose.sample(sorted(types), choose.randint(1, 5))
        names = {f"{kind}_{choose.randrange(100)}": kind for kind in chosen}
        schema = {"type": "object", "properties": {name: types[kind][0] for name, kind in names.items()}}
        texts.append(
            tool(
                f"made_{number}", labels={"system": f"s{number}"}, trust={"tier": "internal"}, input={"schema": schema}
            )
        )
        parts = [f"args.{name}{_spaced(choose.choice(types[kind][1]))}" for name, kind in names.items()]
        parts += [f"has(args.{choose.choice(sorted(names))})", f'"role:r{choose.randrange(20)}" in caller.roles']
        match: dict[str, Any] = choose.choice(
            (
                {"tools": [f"made_{number}"]},
                {"labels": {"system": f"s{number}"}},
                {"tools": ["made_*"], "catalogues": ["made"]},
            )
        )
        approval = {
            "type": "approval",
            "from": [f"role:r{choose.randrange(20)}"],
            "timeout": "5m",
            "reason": "x",
            "show": sorted(names)[:1],
        }
        texts.append(
            rule(
                f"rule-{number}",
                match=match,
                when=choose.choice((" && ", " || ")).join(choose.sample(parts, choose.randint(1, len(parts)))),
                check=approval if "tools" in match and "*" not in match["tools"][0] else RATE,
            )
        )
    texts.append(
        catalogue("made", audience=[f"role:r{number}" for number in range(20)], include=[{"tools": ["made_*"]}])
    )
    return "---\n".join(texts)


def _spaced(text: str) -> str:
    return text if text[:1] in (".", "[", "") else f" {text}"


def _misspell(choose: random.Random, name: str) -> str:
    at = choose.randrange(len(name))
    slips = (
        name[:at] + name[at + 1 :],
        name[:at] + name[at] + name[at:],
        name[:at] + name[at].upper() + name[at + 1 :],
        name[:at] + choose.choice("abcxyz019") + name[at + 1 :],
        f"{name}s",
        name.replace("-", "_"),
        name.replace("l", "1"),
        name.replace("o", "0"),
        name[::-1].strip("-"),
    )
    return choose.choice(slips).strip("-_.")


def _token(subject: str, *, roles: list[str]) -> dict[str, Any]:
    return {"subject": subject, "roles": roles, "sha256": {"fromEnv": "TOKEN"}, "expires": "2029-12-31"}


def _issuer(mapped: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "jwt",
        "issuer": "https://login.example.com",
        "audience": ["gateway"],
        "algorithms": ["RS256"],
        "keys": {"fromUrl": "https://login.example.com/jwks.json"},
        "roles": {"claim": "groups", "map": mapped},
    }
