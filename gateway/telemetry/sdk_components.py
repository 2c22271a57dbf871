"""The parts of the OpenTelemetry SDK that the environment names: found by their entry points, as the SDK does.

A name that cannot be loaded is an error, so that nothing is ignored silently.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource, ResourceDetector
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Sampler

from gateway.telemetry.settings import InvalidTelemetry, Signal, is_builtin_sampler

CONFIG_FILE: Final = "OTEL_CONFIG_FILE"
_DETECTORS: Final = "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"
VIEWS: Final = "gateway_metric_views"
_LIMITS: Final = (
    *("OTEL_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_EVENT_COUNT_LIMIT"),
    *("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "OTEL_SPAN_LINK_COUNT_LIMIT", "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"),
)
"""Variables that the SDK reads itself."""


@dataclass(frozen=True, slots=True)
class SdkComponents:
    """What the environment sets about traces beside the gateway's own settings."""

    sampler: Sampler | None = None
    id_generator: IdGenerator | None = None
    propagator: TextMapPropagator | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """What is in force, by variable, for the start-up line."""


def load_components(environ: Mapping[str, str]) -> SdkComponents:
    """Load what the environment names. Raises `InvalidTelemetry` for what cannot be loaded."""
    named = {}
    sampler, generator = environ.get("OTEL_TRACES_SAMPLER", "").strip(), environ.get("OTEL_PYTHON_ID_GENERATOR", "")
    made: Any = None
    if sampler and not is_builtin_sampler(sampler):
        named["OTEL_TRACES_SAMPLER"] = sampler
        argument = environ.get("OTEL_TRACES_SAMPLER_ARG")
        made = _make("OTEL_TRACES_SAMPLER", "opentelemetry_traces_sampler", sampler, Sampler, argument)
    ids: Any = None
    if generator.strip() not in ("", "random"):
        named["OTEL_PYTHON_ID_GENERATOR"] = generator
        ids = _make("OTEL_PYTHON_ID_GENERATOR", "opentelemetry_id_generator", generator.strip(), IdGenerator)
    if propagators := environ.get("OTEL_PROPAGATORS", "").strip():
        named["OTEL_PROPAGATORS"] = propagators
    for variable in filter(environ.get, _LIMITS):
        if not environ[variable].strip().isdecimal():
            raise InvalidTelemetry(f"the environment variable {variable} cannot be used", help="write a number")
        named[variable] = environ[variable]
    return SdkComponents(made, ids, _load_propagator(propagators), named)


def check_exporter(signal: Signal, name: str) -> None:
    """Raise `InvalidTelemetry` unless an exporter with that name is installed. It is not made yet: it may connect."""
    _find(*_places_of(signal), name)


def load_exporter(signal: Signal, name: str, *kinds: type[Any]) -> Any:
    """Return an exporter, of one of the kinds, by the name of its entry point. It reads its own variables."""
    return _make(*_places_of(signal), name, kinds)


def find_views() -> list[View]:
    """Return the views of other packages. An entry point names a view, a list, or a function that returns one."""
    views: list[View] = []
    for entry in entry_points(group=VIEWS):
        try:
            found = entry.load()
            found = found() if callable(found) else found
        except Exception as error:
            raise InvalidTelemetry(
                f"views of metrics cannot be loaded: {type(error).__name__}", help=f"check {entry.value}"
            ) from error
        views += found if isinstance(found, list | tuple) else [found]
    if not all(isinstance(each, View) for each in views):
        raise InvalidTelemetry("what a package offers is no view of metrics", help=f"check the group {VIEWS}")
    return views


def _places_of(signal: Signal) -> tuple[str, str]:
    """Return the variable that names exporters, and the group of their entry points."""
    return f"OTEL_{signal.upper()}_EXPORTER", f"opentelemetry_{signal}_exporter"


def detect_resource(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what the named detectors find about the process and its surroundings."""
    found = Resource.get_empty()
    wanted = [each.strip() for each in environ.get(_DETECTORS, "").split(",") if each.strip()]
    if "*" in wanted:
        wanted = sorted({each.name for each in entry_points(group="opentelemetry_resource_detector")})
    for name in wanted:
        if name != "otel":  # the gateway reads those variables itself
            detector = _make(_DETECTORS, "opentelemetry_resource_detector", name, ResourceDetector)
            found = found.merge(detector.detect())
    return dict(found.attributes)


def configure_by_file(environ: Mapping[str, str]) -> None:
    """Configure the SDK of this process by the declarative configuration file, if one is named."""
    found = _load_config_file(environ)
    if found is not None:
        with _refuse_config_file():
            import_module("opentelemetry.configuration").configure_sdk(found)


def check_config_file(environ: Mapping[str, str]) -> bool:
    """Whether a declarative configuration file is named. Raises `InvalidTelemetry` if it cannot be read."""
    return _load_config_file(environ) is not None


def _load_config_file(environ: Mapping[str, str]) -> Any:
    path = environ.get(CONFIG_FILE, "").strip()
    if not path:
        return None
    try:
        configuration = import_module("opentelemetry.configuration")
    except ImportError as error:
        raise InvalidTelemetry(
            f"{CONFIG_FILE} needs a package that is not installed",
            help='install it with: pip install "agent-gateway[otel-config]", or remove the variable',
        ) from error
    with _refuse_config_file():
        return configuration.load_config_file(path)


@contextmanager
def _refuse_config_file() -> Iterator[None]:
    """Leave out the text of errors: the file may contain secrets."""
    try:
        yield
    except Exception as error:
        raise InvalidTelemetry(
            f"{CONFIG_FILE} cannot be used: {type(error).__name__}", help="check the file against its schema"
        ) from error


def _load_propagator(names: str) -> TextMapPropagator | None:
    """Return the named propagators as one; `None` without names, for those of the process."""
    wanted = [each.strip() for each in names.split(",") if each.strip()]
    if not wanted:
        return None
    if "none" in map(str.lower, wanted):
        return CompositePropagator([])
    make = [
        _make("OTEL_PROPAGATORS", "opentelemetry_propagator", each, TextMapPropagator) for each in dict.fromkeys(wanted)
    ]
    return CompositePropagator(make)


def _make(variable: str, group: str, name: str, kind: type | tuple[type, ...], *args: Any) -> Any:
    """Load an entry point, call what it names and return the result, which must be of that kind, or of one of them."""
    found = _find(variable, group, name)
    try:
        made = found.load()(*args)
    except Exception as error:
        raise InvalidTelemetry(
            f"what the environment variable {variable} names cannot be loaded: {type(error).__name__}",
            help="check its package and its own variables",
        ) from error
    if not isinstance(made, kind):
        raise InvalidTelemetry(
            f"what the environment variable {variable} names is of the wrong kind", help=f"check the group {group}"
        )
    return made


def _find(variable: str, group: str, name: str) -> EntryPoint:
    known = entry_points(group=group)
    for found in known.select(name=name):
        return found
    raise InvalidTelemetry(
        f"the environment variable {variable} names something that is not installed",
        help=f"install its package; there are: {', '.join(sorted({each.name for each in known})) or 'none'}",
    )
