"""The page about the security review: the report of the example is what its command writes."""

import os
import re
import shlex
from pathlib import Path

from tests.support.gateways.commands import run_gateway
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "security-review.md"
EXAMPLE = ROOT / "docs" / "example-review.html"


def test_report_of_the_example_is_what_its_command_writes(tmp_path: Path) -> None:
    [command] = re.findall(
        r"^gateway (report .*) --output docs/example-review.html$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    written = tmp_path / "example-review.html"
    # Variables of this machine are no part of the example.
    environ = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR")}

    done = run_gateway(*shlex.split(command), "--output", str(written), cwd=ROOT, env=environ)

    assert done.returncode == 0, done.stderr
    is_same = written.read_bytes() == EXAMPLE.read_bytes()  # a comparison of pages would be printed
    assert is_same, f"the example has changed; run: gateway {command} --output docs/example-review.html"


def test_images_of_the_page_exist_and_are_described() -> None:
    images = re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", PAGE.read_text("utf-8"))

    assert len(images) == 4
    assert all((PAGE.parent / path).is_file() and len(words) > 20 for words, path in images)


def test_page_is_linked() -> None:
    assert "docs/security-review.md" in (ROOT / "README.md").read_text("utf-8")
