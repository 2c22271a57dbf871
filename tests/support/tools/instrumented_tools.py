"""Tools with a span of their own around instrumented libraries: an HTTP client and a database."""

import asyncio
import json
from importlib import import_module
from typing import Any

import aiohttp
import sqlalchemy
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


def prepare(collector: str) -> None:
    """Instrument the libraries, unless `opentelemetry-instrument` has. A worker process needs an SDK of its own."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # Not imported by a statement: these packages are not in the lock.
    http_client = import_module("opentelemetry.instrumentation.aiohttp_client")
    database = import_module("opentelemetry.instrumentation.sqlalchemy")
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        provider = TracerProvider(resource=Resource.create({"service.name": "worker process"}))
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector}/v1/traces")))
        trace.set_tracer_provider(provider)
    instrumentors: list[Any] = [http_client.AioHttpClientInstrumentor(), database.SQLAlchemyInstrumentor()]
    for each in instrumentors:
        if not each.is_instrumented_by_opentelemetry:
            each.instrument(skip_dep_check=True)  # SQLAlchemy 2.1 is newer than what its instrumentation declares


async def look(text: str) -> str:
    """Ask a service, and a database. `text` is JSON: the address of the service, and that of the collector."""
    given = json.loads(text)
    prepare(given["collector"])
    with trace.get_tracer("shop").start_as_current_span("look"):
        async with aiohttp.ClientSession() as session, session.get(given["service"]) as answer:
            found = await answer.text()
        with sqlalchemy.create_engine("sqlite://").connect() as connection:
            rows = connection.execute(sqlalchemy.text("SELECT 7")).scalar()
    return f"{found} {rows}"


def look_at_once(text: str) -> str:
    return asyncio.run(look(text))
