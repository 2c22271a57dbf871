"""Packages with stages, installed for the duration of a test; the stages that the package's README shows."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.paths import ROOT

README = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
[FOOTER] = [block for block in BLOCKS if "def footer" in block]
[AT_MOST] = [block for block in BLOCKS if "def at_most" in block]


class StagePackages:
    """A folder of installed packages, on the path while a test runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def install(
        self,
        code: str,
        *,
        name: str = "acme-stages",
        stage: str = "footer",
        factory: str = "footer",
        group: str = "gateway.stages",
    ) -> None:
        module = name.replace("-", "_")
        (self._folder / f"{module}.py").write_text(dedent(code), encoding="utf-8")
        about = self._folder / f"{module}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (about / "entry_points.txt").write_text(f"[{group}]\n{stage} = {module}:{factory}\n", encoding="utf-8")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StagePackages]:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    known = set(sys.modules)
    yield StagePackages(folder)
    for name in set(sys.modules) - known:
        if name.startswith(("acme_", "other_")):
            del sys.modules[name]
