"""Names outside of `gateway.` are those of the published semantic conventions."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import opentelemetry.semconv
from opentelemetry.semconv.schemas import Schemas

from gateway.telemetry import names
from tests.telemetry.test_names import list_attributes

OURS = "gateway."


def modules() -> Iterator[ModuleType]:
    """Yield all modules of the conventions; some packages there have no `__init__`."""
    [place] = opentelemetry.semconv.__path__
    for path in sorted(Path(place).rglob("*.py")):
        parts = path.relative_to(place).with_suffix("").parts
        yield import_module(".".join((opentelemetry.semconv.__name__, *(each for each in parts if each != "__init__"))))


PUBLISHED = {
    value
    for module in modules()
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str) and not value.startswith("https:")
}
NEWER = {
    names.EXECUTE_DURATION.name: "the conventions of generative AI, which have releases of their own now, added it",
}
"""Names that the installed package does not have, and why they are used."""


def test_every_attribute_outside_our_namespace_is_published() -> None:
    theirs = {name for name in list_attributes() if not name.startswith(OURS)}

    assert len(PUBLISHED) > 500
    assert theirs - PUBLISHED == set()


def test_every_metric_outside_our_namespace_is_published() -> None:
    theirs = {metric.name for metric in names.METRICS if not metric.name.startswith(OURS)}

    assert theirs - PUBLISHED == set(NEWER)


def test_our_namespace_is_not_one_of_theirs() -> None:
    assert {name for name in PUBLISHED if name.startswith(OURS)} == set()


def test_the_schema_is_one_that_is_published() -> None:
    assert names.SCHEMA_URL in {each.value for each in Schemas}
