"""The documentation lists every name, and no other."""

import re

from gateway.telemetry import names
from tests.support.paths import ROOT
from tests.telemetry.test_names import list_attributes

TEXT = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")


def table(heading: str) -> list[str]:
    section = TEXT.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_every_name_is_in_its_table_and_no_other() -> None:
    assert table("Spans") == sorted(names.SPANS)
    assert table("Attributes") == list_attributes()
    assert table("Events") == sorted(names.EVENTS)
    assert table("Metrics") == sorted(metric.name for metric in names.METRICS)
    assert names.SCHEMA_URL in TEXT


def test_every_variable_that_is_read_is_documented() -> None:
    code = (ROOT / "gateway" / "telemetry" / "settings.py").read_text(encoding="utf-8")
    read = set(re.findall(r'"(OTEL_[A-Z_]+?)_?"', code))

    assert {name for name in read if name not in TEXT} == set()
