"""Every Python example of our documents runs and prints what it says it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = [
    pytest.param(block, id=f"{document.relative_to(ROOT)}-{number}")
    for document in (ROOT / "README.md", ROOT / "gateway" / "README.md")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL))
    if "127.0.0.1:8080" not in block  # those need a gateway and are run against one
]

TOLD_AS_ONE = {
    *("cli", "config/specs", "config/linking", "review/controls"),  # a module for each command, kind or rule
    "formats",  # a few modules for each format
    "storage/migrations/versions",
}
"""Packages whose modules are of one kind: what that is, is told instead."""


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_and_prints_what_its_comments_say(example: str) -> None:
    promised = re.findall(r"^\s*print\(.*\)  # (.+)$", example, re.MULTILINE)

    run = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True)

    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == promised


def test_first_example_is_about_ten_lines() -> None:
    example = EXAMPLES[0].values[0]
    assert isinstance(example, str)

    assert len([line for line in example.splitlines() if line.strip()]) <= 16


def test_every_module_is_explained_where_its_package_is() -> None:
    text = (ROOT / "gateway" / "README.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^##+ `([a-z_/]+)/`\n(.*?)(?=^## |^### `|\Z)", text, re.MULTILINE | re.DOTALL))
    modules = [path.relative_to(ROOT / "gateway") for path in (ROOT / "gateway").glob("*/**/*.py")]
    missing = [
        str(module)
        for module in modules
        if (package := module.parent.as_posix()) not in TOLD_AS_ONE
        and module.stem != "__init__"
        and f"`{module.stem}`" not in sections.get(package, "")
    ]

    assert missing == []


LINKING = [
    "README.md",
    "configs/README.md",
    *(f"docs/{name}.md" for name in ("artifacts", "identity", "reload", "threats", "upstreams")),
]


@pytest.mark.parametrize("name", LINKING)
def test_links_of_a_document_lead_somewhere(name: str) -> None:
    page = ROOT / name
    targets = [
        each.partition("#") for each in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8"))
    ]
    assert targets
    for path, _, anchor in targets:
        target = page.parent / path if path else page
        assert target.exists(), path
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        slugs = {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
        assert not anchor or anchor in slugs, f"{path}#{anchor}"


def test_every_make_target_of_the_documents_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    documents = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md"))

    assert set(re.findall(r"`make ([a-z]+)`", documents)) <= targets
