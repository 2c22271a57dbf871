"""Every Python example in the documents runs and prints the output in its comments."""

import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

EXAMPLES = [
    pytest.param(block, id=f"{document.relative_to(ROOT)}-{number}")
    for document in (ROOT / "README.md", ROOT / "docs" / "library.md")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL))
    if "127.0.0.1:8080" not in block  # those need a gateway and are run against one
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs_and_prints_what_its_comments_show(example: str) -> None:
    promised = re.findall(r"^\s*print\(.*\)  # (.+)$", example, re.MULTILINE)

    run = subprocess.run([sys.executable, "-W", "error", "-c", example], capture_output=True, text=True)

    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == promised


def test_first_example_is_about_ten_lines() -> None:
    example = EXAMPLES[0].values[0]
    assert isinstance(example, str)

    assert len([line for line in example.splitlines() if line.strip()]) <= 16


def test_every_package_is_on_the_map() -> None:
    text = (ROOT / "gateway" / "README.md").read_text(encoding="utf-8")
    packages = {path.parent.name for path in (ROOT / "gateway").glob("*/__init__.py")}

    assert set(re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)) == packages | {"errors"}
    assert len(text.splitlines()) < 50, "the map fits on one screen"


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
