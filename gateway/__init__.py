"""A declarative gateway between agents and the tools they call.

This is the public surface; everything else may change between minor versions. Names are imported when they are first
used: whoever needs one does not wait for the parsers of all the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway.core.abort import AbortController, AbortSignal
    from gateway.core.artifacts import SpooledArtifact, ToolMethod
    from gateway.core.callbacks import in_memory_callbacks
    from gateway.core.calls import ToolCall
    from gateway.core.canonical import UNDEFINED, call_id, canonical
    from gateway.core.context import DispatchContext, TurnContext
    from gateway.core.definitions import definition, definitions
    from gateway.core.dispatch import dispatch
    from gateway.core.events import EventBus
    from gateway.core.forging import forge_into
    from gateway.core.gates import TurnGate
    from gateway.core.media import FileMediaReader, InMemoryMediaReader, Media, OpenedMediaReader
    from gateway.core.patterns import Pattern
    from gateway.core.prompt import assemble_prompt
    from gateway.core.records import Memory, Message, Retrievable, Thought
    from gateway.core.registry import Registry
    from gateway.core.rendering import Renderer
    from gateway.core.reporting import Reporter
    from gateway.core.schemas import Schema
    from gateway.core.settling import ProposedCall, settle_call, settle_calls
    from gateway.core.spool import FileReader, FileStore, InMemoryReader, InMemoryStore
    from gateway.core.tokens import Tokenizable
    from gateway.core.tool_registry import ToolRegistry
    from gateway.core.tools import ArtifactTool, Tool
    from gateway.core.turns import TurnRunner
    from gateway.errors import GatewayError
    from gateway.formats.converters import converter_tools
    from gateway.formats.ecmascript import SpooledEcmascriptArtifact
    from gateway.formats.jsondoc import SpooledJsonArtifact
    from gateway.formats.markdown import SpooledMarkdownArtifact
    from gateway.formats.python_source import SpooledPythonArtifact
    from gateway.formats.toon import SpooledToonArtifact
    from gateway.formats.xmldoc import SpooledXmlArtifact
    from gateway.formats.yamldoc import SpooledYamlArtifact
    from gateway.serving.asking import (
        CallerCannotAnswer,
        ask_caller,
        ask_caller_blocking,
        can_ask_caller,
        log_message,
        report_progress,
    )
    from gateway.serving.current import Question

__version__ = "0.1.0"

__all__ = [
    "UNDEFINED",
    "AbortController",
    "AbortSignal",
    "ArtifactTool",
    "CallerCannotAnswer",
    "DispatchContext",
    "EventBus",
    "FileMediaReader",
    "FileReader",
    "FileStore",
    "GatewayError",
    "InMemoryMediaReader",
    "InMemoryReader",
    "InMemoryStore",
    "Media",
    "Memory",
    "Message",
    "OpenedMediaReader",
    "Pattern",
    "ProposedCall",
    "Question",
    "Registry",
    "Renderer",
    "Reporter",
    "Retrievable",
    "Schema",
    "SpooledArtifact",
    "SpooledEcmascriptArtifact",
    "SpooledJsonArtifact",
    "SpooledMarkdownArtifact",
    "SpooledPythonArtifact",
    "SpooledToonArtifact",
    "SpooledXmlArtifact",
    "SpooledYamlArtifact",
    "Thought",
    "Tokenizable",
    "Tool",
    "ToolCall",
    "ToolMethod",
    "ToolRegistry",
    "TurnContext",
    "TurnGate",
    "TurnRunner",
    "ask_caller",
    "ask_caller_blocking",
    "assemble_prompt",
    "call_id",
    "can_ask_caller",
    "canonical",
    "converter_tools",
    "definition",
    "definitions",
    "dispatch",
    "forge_into",
    "in_memory_callbacks",
    "log_message",
    "report_progress",
    "settle_call",
    "settle_calls",
]

_HOMES: Final = {
    "UNDEFINED": "core.canonical",
    "AbortController": "core.abort",
    "AbortSignal": "core.abort",
    "ArtifactTool": "core.tools",
    "CallerCannotAnswer": "serving.asking",
    "DispatchContext": "core.context",
    "EventBus": "core.events",
    "FileMediaReader": "core.media",
    "FileReader": "core.spool",
    "FileStore": "core.spool",
    "GatewayError": "errors",
    "InMemoryMediaReader": "core.media",
    "InMemoryReader": "core.spool",
    "InMemoryStore": "core.spool",
    "Media": "core.media",
    "Memory": "core.records",
    "Message": "core.records",
    "OpenedMediaReader": "core.media",
    "Pattern": "core.patterns",
    "ProposedCall": "core.settling",
    "Question": "serving.current",
    "Registry": "core.registry",
    "Renderer": "core.rendering",
    "Reporter": "core.reporting",
    "Retrievable": "core.records",
    "Schema": "core.schemas",
    "SpooledArtifact": "core.artifacts",
    "SpooledEcmascriptArtifact": "formats.ecmascript",
    "SpooledJsonArtifact": "formats.jsondoc",
    "SpooledMarkdownArtifact": "formats.markdown",
    "SpooledPythonArtifact": "formats.python_source",
    "SpooledToonArtifact": "formats.toon",
    "SpooledXmlArtifact": "formats.xmldoc",
    "SpooledYamlArtifact": "formats.yamldoc",
    "Thought": "core.records",
    "Tokenizable": "core.tokens",
    "Tool": "core.tools",
    "ToolCall": "core.calls",
    "ToolMethod": "core.artifacts",
    "ToolRegistry": "core.tool_registry",
    "TurnContext": "core.context",
    "TurnGate": "core.gates",
    "TurnRunner": "core.turns",
    "ask_caller": "serving.asking",
    "ask_caller_blocking": "serving.asking",
    "assemble_prompt": "core.prompt",
    "call_id": "core.canonical",
    "can_ask_caller": "serving.asking",
    "canonical": "core.canonical",
    "converter_tools": "formats.converters",
    "definition": "core.definitions",
    "definitions": "core.definitions",
    "dispatch": "core.dispatch",
    "forge_into": "core.forging",
    "in_memory_callbacks": "core.callbacks",
    "log_message": "serving.asking",
    "report_progress": "serving.asking",
    "settle_call": "core.settling",
    "settle_calls": "core.settling",
}
"""The module of each name; a test holds it against the imports above."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"gateway.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
