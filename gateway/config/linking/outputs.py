"""What upstreams promise of the results of their tools: passed on and checked, unless the terms say otherwise."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.linking.entries import Entry
from gateway.config.specs.tools import Output
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.core.promises import Promise
from gateway.governance.diagnostics import Diagnostic
from gateway.governance.imports import ImportedDefinition, plain


def brought_output(
    definition: ImportedDefinition | None, upstream: Entry[UpstreamDocument] | None, declared: Output | None = None
) -> Mapping[str, Any] | None:
    """The schema that a definition has for results; none where a document says itself what they are."""
    if definition is None or definition.output_schema is None or not _counts(upstream):
        return None
    if declared is not None and (declared.schema_ is not None or declared.media is not None):
        return None
    given: Mapping[str, Any] = plain(definition.output_schema)
    return given if _is_checkable(given) else None


def uncheckable_outputs(upstream: Entry[UpstreamDocument], definition: ImportedDefinition) -> Iterator[Diagnostic]:
    given = definition.output_schema
    if given is None or not _counts(upstream) or _is_checkable(plain(given)):
        return
    message = f"the output schema of {definition.identity} is left out: it is none that could be checked"
    help = "tell whoever runs the upstream, or write import: {outputSchemas: ignore}"
    yield Diagnostic("bad-definition", message, definition.position or upstream.at("spec", "import"), "warning", help)


def _counts(upstream: Entry[UpstreamDocument] | None) -> bool:
    return upstream is not None and upstream.document.spec.import_.output_schemas == "promise"


def _is_checkable(schema: Mapping[str, Any]) -> bool:
    try:
        Promise(schema)
    except (ValueError, RecursionError):
        return False
    return True
