"""The standard variables of the OpenTelemetry specification."""

from pathlib import Path

import pytest

from gateway.telemetry import settings as environment
from gateway.telemetry.settings import BatchSettings, InvalidTelemetry, JsonLinesSettings, OtlpExporterSettings

URL = "http://collector:4318"


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": URL}, f"{URL}/v1/traces", id="base"),
        pytest.param({"OTEL_EXPORTER_OTLP_ENDPOINT": f"{URL}/x/"}, f"{URL}/x/v1/traces", id="base-with-path"),
        pytest.param({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{URL}/own"}, f"{URL}/own", id="of-the-signal"),
        pytest.param({"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4318/v1/traces", id="default"),
        pytest.param(
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http://localhost:4317", id="grpc"
        ),
    ],
)
def test_where_a_collector_is(environ: dict[str, str], address: str) -> None:
    [found] = environment.exporters_from_environment("traces", environ)

    assert isinstance(found, OtlpExporterSettings)
    assert found.endpoint == address


def test_without_a_word_nothing_is_sent() -> None:
    named_none = {"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_EXPORTER": "none"}

    assert environment.exporters_from_environment("traces", {}) == ()
    assert environment.exporters_from_environment("traces", named_none) == ()
    assert environment.exporters_from_environment("logs", {"OTEL_LOGS_EXPORTER": "console"}) == (JsonLinesSettings(),)


def test_how_a_collector_is_spoken_to() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": URL,
        "OTEL_EXPORTER_OTLP_HEADERS": "API-Key=a%20b, x=1",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/ca.pem",
    }

    found = environment.otlp_from_environment("logs", environ)

    assert (found.headers(), found.timeout, found.compression) == ({"api-key": "a b", "x": "1"}, 2.5, "gzip")
    assert found.certificate == Path("/ca.pem")


@pytest.mark.parametrize(
    ("sampler", "argument", "ratio", "follows"),
    [
        ("", "", 1.0, True),
        ("always_on", "", 1.0, False),
        ("parentbased_always_off", "", 0.0, True),
        ("traceidratio", "0.25", 0.25, False),
        ("parentbased_traceidratio", "", 1.0, True),
    ],
)
def test_samplers(sampler: str, argument: str, ratio: float, follows: bool) -> None:
    found = environment.read_sampling({"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument})

    assert (found.ratio, found.follows_caller) == (ratio, follows)


@pytest.mark.parametrize("argument", ["abc", "-1", "nan"])
def test_an_argument_that_no_sampler_could_use_is_refused_whichever_is_chosen(argument: str) -> None:
    with pytest.raises(InvalidTelemetry, match="OTEL_TRACES_SAMPLER_ARG"):
        environment.read_sampling({"OTEL_TRACES_SAMPLER_ARG": argument})


def test_batches_and_limits() -> None:
    environ = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "100",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "500",
        "OTEL_BSP_SCHEDULE_DELAY": "250",
        "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "64",
        "OTEL_RESOURCE_ATTRIBUTES": "a=1,service.name=other",
        "OTEL_SERVICE_NAME": "mine",
    }

    assert environment.read_batching("OTEL_BSP", environ, BatchSettings()) == BatchSettings(100, 100, 0.25)
    assert environment.read_batching("OTEL_BLRP", environ, BatchSettings()) == BatchSettings()
    assert environment.attribute_length_limit(environ, 1024) == 64
    assert environment.read_resource(environ) == {"a": "1", "service.name": "mine"}
    assert environment.is_disabled({"OTEL_SDK_DISABLED": " TRUE "})


@pytest.mark.parametrize(
    ("word", "results"),
    [("", "none"), ("false", "none"), ("EVENT_ONLY", "none"), ("True", "values"), ("SPAN_AND_EVENT", "values")],
)
def test_contents_are_shown_if_the_environment_enables_it(word: str, results: str) -> None:
    found = environment.read_capture({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": word})

    assert found.results == results
    assert found.arguments == ("values" if results == "values" else "keys")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_LOGS_EXPORTER", "otlp,none"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:99999"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/xml"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_RESOURCE_ATTRIBUTES", "hunter2"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "some"),
    ],
)
def test_a_wrong_value_names_its_variable_and_never_itself(variable: str, value: str) -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": URL, "OTEL_TRACES_SAMPLER": "traceidratio", variable: value}

    with pytest.raises(InvalidTelemetry) as raised:
        _everything(environ)

    assert variable in raised.value.message
    assert raised.value.help
    assert value in ("0", "2") or value not in f"{raised.value.message}{raised.value.help}"


def _everything(environ: dict[str, str]) -> None:
    environment.exporters_from_environment("traces", environ)
    environment.exporters_from_environment("logs", environ)
    environment.read_resource(environ)
    environment.read_sampling(environ)
    environment.read_capture(environ)
    environment.read_batching("OTEL_BSP", environ, BatchSettings())
