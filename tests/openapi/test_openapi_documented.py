"""What docs/openapi.md says is so."""

import re
from pathlib import Path

import pytest
import yaml

from gateway.config.codes import CODES
from gateway.config.kinds import validate
from gateway.openapi.operations import MAX_OPERATIONS
from gateway.openapi.reading import MAX_BYTES, MAX_YAML_BYTES
from gateway.openapi.requests import STYLES
from gateway.openapi.texts import MAX_NAME

TEXT = (Path(__file__).parent.parent.parent / "docs" / "openapi.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "example", re.findall(r"```yaml\n(apiVersion.*?)```", TEXT, re.DOTALL), ids=["upstream", "tool"]
)
def test_example_is_a_document(example: str) -> None:
    model, problems = validate(yaml.safe_load(example))

    assert model is not None, problems


def test_codes_bounds_and_styles_are_the_ones_there_are() -> None:
    assert {"upstream-argument", "wider-schema", "no-credentials"} <= CODES.keys()
    assert f"{MAX_BYTES >> 20} MiB ({MAX_YAML_BYTES >> 20} MiB as YAML) or {MAX_OPERATIONS:,} operations" in TEXT
    assert f"at most {MAX_NAME}." in TEXT
    assert all(f"`{style}`" in TEXT for styles in STYLES.values() for style in styles)
