"""ToolRegistry: tools by name, which of them are hidden, and how two sets of tools become one.

A registry does not retry, authorise, cache or order anything. Hidden means registered and
callable by name, but absent from what the model is shown.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeGuard, get_args

from gateway.core.tools import OnCollision, Tool
from gateway.errors import ToolAlreadyRegistered


class AckSource(Protocol):
    def on_ack(self, handler: Callable[[], object]) -> Callable[[], None]: ...


class ToolRegistry:
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._hidden: set[str] = set()
        self._ephemeral: set[str] = set()
        self._is_shared = False
        """Whether a copy reads the same dict: then it is copied before it is changed, not before."""
        for tool in tools:
            self.register(tool)

    @staticmethod
    def is_tool_registry(value: object) -> "TypeGuard[ToolRegistry]":
        return isinstance(value, ToolRegistry)

    def register(self, tool: Tool, overwrite: bool = False) -> None:
        """Add a tool. The tool's own `on_collision` is not consulted: a clash raises unless `overwrite`.

        An overwritten tool gives up its position and its hidden flag to the new one.
        """
        if not isinstance(tool, Tool):
            raise TypeError(f"a tool registry holds tools, not {type(tool).__name__}")
        if tool.name in self._tools and not overwrite:
            raise ToolAlreadyRegistered(
                f"a tool named {tool.name!r} is already registered",
                help="rename one of them, or pass overwrite=True",
            )
        self._own()[tool.name] = tool
        self._note_life(tool)

    def unregister(self, name: str) -> None:
        if name in self._tools:
            del self._own()[name]
        self._hidden.discard(name)
        self._ephemeral.discard(name)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def has(self, name: str) -> bool:
        return name in self._tools

    def all(self) -> list[Tool]:
        return list(self._tools.values())

    def visible(self) -> list[Tool]:
        return [tool for name, tool in self._tools.items() if name not in self._hidden]

    def hidden(self) -> list[Tool]:
        return [tool for name, tool in self._tools.items() if name in self._hidden]

    def hide(self, *names: str) -> None:
        """Hide names, also those not registered yet: such a tool starts hidden."""
        self._hidden.update(names)

    def unhide(self, *names: str) -> None:
        self._hidden.difference_update(names)

    def set_hidden(self, *names: str) -> None:
        self._hidden = set(names)

    def clear_hidden(self) -> None:
        self._hidden.clear()

    def prune_ephemeral(self) -> None:
        if self._ephemeral:
            for name in list(self._ephemeral):
                self.unregister(name)

    def bind_context(self, ctx: AckSource) -> Callable[[], None]:
        """Prune ephemeral tools when `ctx` is acked; returns an unsubscribe function."""
        return ctx.on_ack(self.prune_ephemeral)

    def copy(self) -> "ToolRegistry":
        """The same tools and the same hidden names, free to change on its own. Cheap, however many tools there are."""
        copied = ToolRegistry()
        copied._tools = self._tools
        copied._hidden = set(self._hidden)
        copied._ephemeral = set(self._ephemeral)
        copied._is_shared = self._is_shared = True
        return copied

    def _note_life(self, tool: Tool) -> None:
        """Ephemeral tools are known by name: an ack looks at no other tool."""
        if tool.ephemeral:
            self._ephemeral.add(tool.name)
        else:
            self._ephemeral.discard(tool.name)

    def _own(self) -> dict[str, Tool]:
        if self._is_shared:
            self._tools = dict(self._tools)
            self._is_shared = False
        return self._tools

    @staticmethod
    def merge(registries: Iterable["ToolRegistry"], on_collision: OnCollision = "throw") -> "ToolRegistry":
        """One registry out of several, left to right; the inputs stay as they are.

        On a clash the incoming tool decides; `"throw"` on a tool means no opinion, and then
        `on_collision` decides. Hidden in any source is hidden in the result.
        """
        if on_collision not in get_args(OnCollision):
            raise ValueError(f"on_collision is 'throw', 'replace' or 'keep', not {on_collision!r}")
        merged = ToolRegistry()
        for registry in registries:
            for name, tool in registry._tools.items():
                if name not in merged._tools or _incoming_wins(tool, on_collision):
                    merged._tools[name] = tool
                    merged._note_life(tool)
            merged._hidden.update(name for name in registry._hidden if name in merged._tools)
        return merged


def _incoming_wins(incoming: Tool, on_collision: OnCollision) -> bool:
    policy = on_collision if incoming.on_collision == "throw" else incoming.on_collision
    if policy == "throw":
        raise ToolAlreadyRegistered(
            f"two sources bring a tool named {incoming.name!r}",
            help="set on_collision of the incoming tool or of the merge to 'replace' or 'keep'",
        )
    return policy == "replace"
