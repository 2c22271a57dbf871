"""The tracer provider of the process: which one the gateway uses, and the one that it offers to Python tools.

A provider of OpenTelemetry can be set once in a process, and a gateway may start and stop in it. So the gateway sets
one that passes on to the provider of the gateway that runs.
"""

from typing import Any, Final

from opentelemetry import trace
from opentelemetry.trace import NoOpTracer, NoOpTracerProvider, ProxyTracerProvider, Tracer, TracerProvider


class RunningGatewayProvider(TracerProvider):
    """Passes on to the provider of the gateway that runs, if there is one."""

    def __init__(self) -> None:
        self.target: TracerProvider | None = None

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Any = None,
    ) -> Tracer:
        scope = instrumenting_module_name, instrumenting_library_version, schema_url, attributes
        return _PassingTracer(self, scope)


class _PassingTracer(Tracer):
    def __init__(self, provider: RunningGatewayProvider, scope: tuple[Any, ...]) -> None:
        self._provider = provider
        self._scope = scope

    @property
    def _tracer(self) -> Tracer:
        target = self._provider.target
        return NoOpTracer() if target is None else target.get_tracer(*self._scope)

    def start_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._tracer.start_span(*args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._tracer.start_as_current_span(*args, **kwargs)


_NOT_SET: Final = (ProxyTracerProvider, NoOpTracerProvider, RunningGatewayProvider)


def find_process_provider() -> TracerProvider | None:
    """Return the provider that the process has set, if it was not the gateway."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, _NOT_SET) else provider


def offer_to_tools(provider: TracerProvider) -> None:
    """Make the provider of a gateway that of the process, until `withdraw`."""
    found = trace.get_tracer_provider()
    if isinstance(found, ProxyTracerProvider):
        trace.set_tracer_provider(RunningGatewayProvider())
        found = trace.get_tracer_provider()
    if isinstance(found, RunningGatewayProvider):
        found.target = provider


def withdraw(provider: TracerProvider) -> None:
    found = trace.get_tracer_provider()
    if isinstance(found, RunningGatewayProvider) and found.target is provider:
        found.target = None
