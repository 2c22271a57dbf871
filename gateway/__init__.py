"""A declarative gateway between agents and the tools they call.

This is the public surface; everything else may change between minor versions. A name is imported when it is first
used, so that importing one does not load the parsers of all the others.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.artifacts.formats.converters import converter_tools
    from gateway.artifacts.formats.jsondoc import SpooledJsonArtifact
    from gateway.artifacts.formats.markdown import SpooledMarkdownArtifact
    from gateway.artifacts.formats.source_code.artifacts import SpooledEcmascriptArtifact, SpooledPythonArtifact
    from gateway.artifacts.formats.toon import SpooledToonArtifact
    from gateway.artifacts.formats.xmldoc import SpooledXmlArtifact
    from gateway.artifacts.formats.yamldoc import SpooledYamlArtifact
    from gateway.artifacts.pattern import Pattern
    from gateway.artifacts.spool import FileReader, FileStore, InMemoryReader, InMemoryStore
    from gateway.artifacts.spooled_artifact import SpooledArtifact, ToolMethod
    from gateway.engine.agent.dispatch import dispatch, forge_into, in_memory_callbacks
    from gateway.engine.agent.proposed_calls import ProposedCall, settle_call, settle_calls
    from gateway.engine.agent.turn_runner import TurnRunner
    from gateway.engine.caller import (
        CallerCannotAnswer,
        ask_caller,
        ask_caller_blocking,
        can_ask_caller,
        log_message,
        report_progress,
    )
    from gateway.errors import GatewayError
    from gateway.model.caller import Question
    from gateway.model.media import FileMediaReader, InMemoryMediaReader, Media, OpenedMediaReader
    from gateway.model.primitives.canonical_json import UNDEFINED, call_id, canonical
    from gateway.model.primitives.concurrency import AbortController, AbortSignal
    from gateway.model.primitives.containers import DottedDict as Registry
    from gateway.model.prompt import Renderer, assemble_prompt
    from gateway.model.schema.schema import Schema
    from gateway.model.tokenizer import Tokenizable
    from gateway.model.tools.calls import ToolCall
    from gateway.model.tools.tool import ArtifactTool, Tool
    from gateway.model.tools.tool_registry import ToolRegistry, definition, definitions
    from gateway.model.turns.context import DispatchContext, TurnContext
    from gateway.model.turns.events import EventBus
    from gateway.model.turns.gates import TurnGate
    from gateway.model.turns.records import Memory, Message, Retrievable, Thought
    from gateway.model.turns.reporter import Reporter

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

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
