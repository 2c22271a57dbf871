"""The statements of docs/openapi.md are true."""

import re

import pytest
import yaml

from gateway.backends.openapi.document import MAX_BYTES, MAX_NAME, MAX_YAML_BYTES
from gateway.backends.openapi.request_template import STYLES
from gateway.backends.openapi.tool_definitions import MAX_OPERATIONS
from gateway.config.kinds.validation import validate_document
from gateway.config.reports.diagnostic_codes import CODES
from tests.support.paths import ROOT

TEXT = (ROOT / "docs" / "openapi.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "example", re.findall(r"```yaml\n(apiVersion.*?)```", TEXT, re.DOTALL), ids=["upstream", "tool"]
)
def test_example_is_a_document(example: str) -> None:
    model, problems = validate_document(yaml.safe_load(example))

    assert model is not None, problems


def test_codes_bounds_and_styles_are_the_ones_there_are() -> None:
    assert {"upstream-argument", "wider-schema", "no-credentials"} <= CODES.keys()
    assert f"{MAX_BYTES >> 20} MiB ({MAX_YAML_BYTES >> 20} MiB as YAML) or {MAX_OPERATIONS:,} operations" in TEXT
    assert f"at most {MAX_NAME}." in TEXT
    assert all(f"`{style}`" in TEXT for styles in STYLES.values() for style in styles)
