"""Check that no line of a document is longer than 120 characters: `python -m tests.documents.line_lengths`.

Tables, code and a single long word, such as the name of a test, may be longer.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

LIMIT = 120


def documents() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines()]


def find_long_lines(text: str) -> Iterator[int]:
    """Yield the numbers of lines that are too long."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and len(line) > LIMIT and not line.startswith("|") and " " in line.strip():
            yield number


def main() -> None:
    found = [
        f"{document.relative_to(ROOT)}:{number}: more than {LIMIT} characters"
        for document in documents()
        for number in find_long_lines(document.read_text(encoding="utf-8"))
    ]
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main()
