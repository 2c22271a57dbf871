"""The document in docs/upstreams.md passes the check, and its commands work."""

import re
from pathlib import Path

from tests.support.terminal import block, blocks, run_typed_line

PAGE = "docs/upstreams.md"
SOON_AFTER = "2026-11-01"
"""A date at which the review in the document is recent enough."""


def test_upstream_of_the_page_passes_the_check(tmp_path: Path) -> None:
    document = next(each for each in blocks(PAGE, "yaml") if each.startswith("apiVersion:"))
    run_typed_line("gateway init crew", folder=tmp_path)
    (tmp_path / "crew" / "configs" / "wiki.yaml").write_text(document, encoding="utf-8")

    checked = run_typed_line(f"gateway check crew --on {SOON_AFTER}", folder=tmp_path)

    assert re.findall(r"(?:warning|error): ([a-z-]+)", checked) == ["not-locked"]


def test_servers_are_asked_from_here() -> None:
    probing, _asking_a_gateway = block(PAGE, "sh", "--probe").splitlines()

    assert "wiki" in run_typed_line(probing)
