"""The READMEs name every kind, diagnostic code and command, and describe them correctly."""

import re
from typing import Final

import pytest
import typer
import yaml

from gateway.cli.main import app
from gateway.config.field_docs import STRICTER
from gateway.config.kinds.validation import KINDS, validate_document
from gateway.config.reports.diagnostic_codes import CODES
from tests.support.paths import ROOT

CONFIGS: Final = ROOT / "configs" / "README.md"
DOCUMENTS: Final = (CONFIGS, ROOT / "README.md", ROOT / "policies" / "README.md")
TEXT: Final = "\n".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
EXAMPLES: Final = re.findall(r"```yaml\n(.*?)```", CONFIGS.read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[str]:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return group.list_commands(typer.Context(group))


def row(first: str) -> str:
    """Return the rest of the table row that begins with a name."""
    (found,) = re.findall(rf"^\| `{re.escape(first)}` \| (.*) \|$", CONFIGS.read_text(encoding="utf-8"), re.MULTILINE)
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_kind_is_in_the_table_of_kinds(kind: str) -> None:
    summary, needs_owner, place = row(kind).split(" | ")

    assert summary == KINDS[kind].summary
    assert needs_owner == ("yes" if KINDS[kind].needs_owner else "no")
    assert place


@pytest.mark.parametrize("code", CODES)
def test_code_is_in_the_table_of_codes(code: str) -> None:
    assert row(code) == CODES[code]


def test_no_table_has_a_code_or_kind_that_is_none() -> None:
    named = re.findall(r"^\| `([^`]+)` \|", CONFIGS.read_text(encoding="utf-8"), re.MULTILINE)

    assert sorted(named) == sorted([*KINDS, *CODES])


@pytest.mark.parametrize("command", commands())
def test_command_is_mentioned(command: str) -> None:
    assert re.search(rf"\bgateway {command}\b", TEXT)


def test_every_command_is_in_the_table_of_commands() -> None:
    rows = re.findall(r"^\| (`gateway [^|]*) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    documented = re.findall(r"`gateway ([a-z-]+)`", "\n".join(rows))

    assert sorted(documented) == sorted(commands())


def test_commands_that_are_mentioned_exist() -> None:
    spans = re.findall(r"`gateway ([a-z-]+)[^`\n]*`", TEXT) + re.findall(r"^gateway ([a-z-]+)", TEXT, re.MULTILINE)

    assert set(spans) <= set(commands())


@pytest.mark.parametrize("sentence", STRICTER)
def test_what_the_loader_refuses_besides_is_documented(sentence: str) -> None:
    assert f"- {sentence}\n" in CONFIGS.read_text(encoding="utf-8")


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_documents_of_the_guide_have_the_right_shape(example: str) -> None:
    _, problems = validate_document(yaml.safe_load(example))

    assert problems == []
