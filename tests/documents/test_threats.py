"""The threat model names tests: each exists, and every threat has one."""

import re

import pytest

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w./-]+)(?:::(\w+))?`", PAGE)))
SECTIONS = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
UNTESTED = {"Assets", "Attackers", "Boundaries", "Out of scope"}


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{path}-{name}" for path, name in NAMED])
def test_named_test_exists(path: str, name: str) -> None:
    file = ROOT / path
    assert file.is_file()
    if name:
        assert re.search(rf"^\s*(async )?def {name}\(", file.read_text(encoding="utf-8"), re.MULTILINE)
    else:
        assert re.search(r"^\s*(async )?def test_", file.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("title", "text"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_every_threat_names_a_test(title: str, text: str) -> None:
    threats = re.findall(r"^- (\*\*.+?)(?=^- |\Z)", text, re.MULTILINE | re.DOTALL)
    assert threats or title in UNTESTED
    if title not in UNTESTED:
        assert [each.partition("\n")[0] for each in threats if not re.search(r"Tests?:\n  `tests/", each)] == []


def test_page_is_linked_and_its_lines_are_short() -> None:
    for name in ("README.md", "SECURITY.md"):
        assert "docs/threats.md" in (ROOT / name).read_text(encoding="utf-8")
    assert [line for line in PAGE.splitlines() if len(line) > 120 and " " in line.strip()] == []
