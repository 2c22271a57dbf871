"""Which arguments of refused calls are stored, so that another policy can decide about these calls.

Arguments of calls that run are in their records. Of a refused call there is only an excerpt, unless the Storage
document asks for more. What the artifact class of a tool hides from traces is never stored, nor is what looks like a
secret.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.engine.call import Call
from gateway.engine.records.recorder import find_masked_arguments
from gateway.model import glob_matches
from gateway.registries import DeclaredTool
from gateway.storage import ReplayArguments

MAX_BYTES: Final = 64 << 10
"""Arguments that are longer as JSON are not stored."""

ReplayedContent = Literal["values", "masked", "none"]


@dataclass(frozen=True, slots=True)
class ReplayCapture:
    """`values` stores values, `masked` only numbers, booleans and values of an enumeration; texts are masked then.

    Without `tools` and `artifacts` it applies to every tool; otherwise to tools that either of them names.
    """

    content: ReplayedContent
    tools: Collection[str] = ()
    artifacts: Collection[str] = ()

    def applies_to(self, tool: DeclaredTool) -> bool:
        if not self.tools and not self.artifacts:
            return True
        return tool.artifact in self.artifacts or any(glob_matches(tool.name, pattern) for pattern in self.tools)

    def __call__(self, call: Call) -> ReplayArguments | None:
        """Return what is stored of the arguments of a refused call; `None` for nothing."""
        tool, turn = call.declared, call.turn
        if self.content == "none" or tool is None or turn is None or not self.applies_to(tool):
            return None
        if call.args_text is None or len(call.args_text) > MAX_BYTES:
            return None
        kind = turn.published.types.get_declared(tool.artifact)
        shown = "values" if kind is None else kind.capture_arguments
        if shown == "none":
            return None
        hidden = find_masked_arguments(call.args, tool.input_schema or {}, () if kind is None else kind.redact)
        if shown == "keys":
            hidden = frozenset(call.args)
        elif self.content == "masked":
            hidden |= _find_texts(call.args, tool.input_schema or {})
        return ReplayArguments({name: each for name, each in call.args.items() if name not in hidden}, hidden)


def _find_texts(args: Mapping[str, Any], schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of arguments that may contain free text."""
    declared = schema.get("properties")
    declared = declared if isinstance(declared, Mapping) else {}
    return frozenset(name for name, value in args.items() if not _is_plain(value, declared.get(name)))


def _is_plain(value: Any, schema: Any) -> bool:
    if value is None or isinstance(value, bool | int | float):
        return True
    listed = schema.get("enum") if isinstance(schema, Mapping) else None
    return isinstance(value, str) and isinstance(listed, list | tuple) and value in listed
