"""A declarative gateway between agents and the tools they call.

This is the public surface; everything else may change between minor versions. A name is imported when it is first
used, so that importing one does not load the parsers of all the others.
"""

from typing import TYPE_CHECKING

from gateway.lazy import lazy_exports

if TYPE_CHECKING:
    from gateway.artifacts.formats.converter_tools import converter_tools
    from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
    from gateway.artifacts.formats.markdown_artifact import SpooledMarkdownArtifact
    from gateway.artifacts.formats.source_code.source_artifact import SpooledEcmascriptArtifact, SpooledPythonArtifact
    from gateway.artifacts.formats.toon_artifact import SpooledToonArtifact
    from gateway.artifacts.formats.xml_artifact import SpooledXmlArtifact
    from gateway.artifacts.formats.yaml_artifact import SpooledYamlArtifact
    from gateway.artifacts.javascript_regex import Pattern
    from gateway.artifacts.query_tools import ToolMethod
    from gateway.artifacts.spool_stores import FileReader, FileStore, InMemoryReader, InMemoryStore
    from gateway.artifacts.spooled_artifact import SpooledArtifact
    from gateway.engine.caller_interaction import (
        CallerCannotAnswer,
        ask_caller,
        ask_caller_blocking,
        can_ask_caller,
        log_message,
        report_progress,
    )
    from gateway.engine.turn_pipeline.dispatch_loop import dispatch, forge_into, in_memory_callbacks
    from gateway.engine.turn_pipeline.tool_execution import ProposedCall, settle_call, settle_calls
    from gateway.engine.turn_pipeline.turn_runner import TurnRunner
    from gateway.errors import GatewayError
    from gateway.model.caller import Question
    from gateway.model.llm_prompt import Renderer, assemble_prompt
    from gateway.model.media import FileMediaReader, InMemoryMediaReader, Media, OpenedMediaReader
    from gateway.model.primitives.canonical_json import UNDEFINED, call_id, canonical
    from gateway.model.primitives.concurrency import AbortController, AbortSignal
    from gateway.model.primitives.containers import DottedDict as Registry
    from gateway.model.provider_formats import definition, definitions
    from gateway.model.schema.schema import Schema
    from gateway.model.tokenizer import Tokenizable
    from gateway.model.tools.tool import ArtifactTool, Tool
    from gateway.model.tools.tool_call import ToolCall
    from gateway.model.tools.tool_registry import ToolRegistry
    from gateway.model.turns.context import DispatchContext, TurnContext
    from gateway.model.turns.conversation_records import Memory, Message, Retrievable, Thought
    from gateway.model.turns.events import EventBus
    from gateway.model.turns.progress_reporter import Reporter
    from gateway.model.turns.turn_gate import TurnGate

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
