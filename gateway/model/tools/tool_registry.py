"""ToolRegistry: tools by name, hidden tools, and merging of registries.

A registry does not retry, authorise, cache or order anything. A hidden tool is registered and
callable by name, but models are not shown it.
"""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeGuard, get_args

from gateway.errors import ToolAlreadyRegistered
from gateway.model.tools.tool import OnCollision, Tool


class AckEmitter(Protocol):
    def on_ack(self, handler: Callable[[], object]) -> Callable[[], None]: ...


class ToolRegistry:
    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._hidden: set[str] = set()
        self._ephemeral: set[str] = set()
        self._is_shared = False
        """Whether another registry shares the dict `_tools`: then it is copied before the first change."""
        for tool in tools:
            self.register(tool)

    @staticmethod
    def is_tool_registry(value: object) -> "TypeGuard[ToolRegistry]":
        return isinstance(value, ToolRegistry)

    def register(self, tool: Tool, overwrite: bool = False) -> None:
        """Add a tool. A duplicate name raises unless `overwrite`; the tool's `on_collision` is ignored.

        A tool that overwrites another one takes its position and its hidden flag.
        """
        if not isinstance(tool, Tool):
            raise TypeError(f"a tool registry must hold tools, not {type(tool).__name__}")
        if tool.name in self._tools and not overwrite:
            raise ToolAlreadyRegistered(
                f"a tool named {tool.name!r} is already registered",
                help="rename one of them, or pass overwrite=True",
            )
        self._own_tools()[tool.name] = tool
        self._note_lifetime(tool)

    def unregister(self, name: str) -> None:
        if name in self._tools:
            del self._own_tools()[name]
        self._hidden.discard(name)
        self._ephemeral.discard(name)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def get_visible(self, name: str) -> Tool | None:
        return None if name in self._hidden else self._tools.get(name)

    def has(self, name: str) -> bool:
        return name in self._tools

    def all(self) -> list[Tool]:
        return list(self._tools.values())

    def visible(self) -> list[Tool]:
        return [tool for name, tool in self._tools.items() if name not in self._hidden]

    def hidden(self) -> list[Tool]:
        return [tool for name, tool in self._tools.items() if name in self._hidden]

    def hide(self, *names: str) -> None:
        """Hide names. A tool that is registered later under such a name starts hidden."""
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

    def bind_context(self, ctx: AckEmitter) -> Callable[[], None]:
        """Prune ephemeral tools when `ctx` is acked; return an unsubscribe function."""
        return ctx.on_ack(self.prune_ephemeral)

    def copy(self) -> "ToolRegistry":
        """Return an independent copy. Cheap for any number of tools: the dict is shared until one side changes it."""
        copied = ToolRegistry()
        copied._tools = self._tools
        copied._hidden = set(self._hidden)
        copied._ephemeral = set(self._ephemeral)
        copied._is_shared = self._is_shared = True
        return copied

    def _note_lifetime(self, tool: Tool) -> None:
        """Record whether the tool is ephemeral, so that an ack does not have to visit every tool."""
        if tool.ephemeral:
            self._ephemeral.add(tool.name)
        else:
            self._ephemeral.discard(tool.name)

    def _own_tools(self) -> dict[str, Tool]:
        if self._is_shared:
            self._tools = dict(self._tools)
            self._is_shared = False
        return self._tools

    @staticmethod
    def merge(registries: Iterable["ToolRegistry"], on_collision: OnCollision = "throw") -> "ToolRegistry":
        """Merge registries from left to right into a new one.

        For a duplicate name the `on_collision` of the incoming tool decides; if that is `"throw"`, the
        argument `on_collision` decides. A tool that is hidden in any source is hidden in the result.
        """
        if on_collision not in get_args(OnCollision):
            raise ValueError(f"on_collision must be 'throw', 'replace' or 'keep', not {on_collision!r}")
        merged = ToolRegistry()
        for registry in registries:
            for name, tool in registry._tools.items():
                if name not in merged._tools or _replaces(tool, on_collision):
                    merged._tools[name] = tool
                    merged._note_lifetime(tool)
            merged._hidden.update(name for name in registry._hidden if name in merged._tools)
        return merged


def _replaces(incoming: Tool, on_collision: OnCollision) -> bool:
    policy = on_collision if incoming.on_collision == "throw" else incoming.on_collision
    if policy == "throw":
        raise ToolAlreadyRegistered(
            f"two sources have a tool named {incoming.name!r}",
            help="set on_collision of the incoming tool or of the merge to 'replace' or 'keep'",
        )
    return policy == "replace"
