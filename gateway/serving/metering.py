"""Whoever counts. It is told once, when a thing is over; it raises nothing, never waits, and changes nothing.

Times are seconds. Without a meter nothing is measured, and nothing else differs.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gateway.serving.current import ServedCall
    from gateway.snapshot import DeclaredTool


class Meter(Protocol):
    def settled(self, call: "ServedCall", tool: "DeclaredTool | None", is_error: bool, seconds: float) -> None:
        """A call has its record. Query tools are not declared."""
        ...

    def failed(self, call: "ServedCall", tool: "DeclaredTool | None", error: BaseException, *, seconds: float) -> None:
        """There is no record of its end, or nobody waited for it."""
        ...

    def refused(self, call: "ServedCall", reason: str) -> None:
        """Somebody asked for what is not there for them."""
        ...

    def kept(self, catalogue: str, size: int) -> None:
        """Bytes of a result."""
        ...

    def wrote(self, seconds: float) -> None:
        """A record is durable."""
        ...

    def wrote_nothing(self) -> None:
        """A record could not be written."""
        ...

    def answered(
        self,
        method: str | None,
        seconds: float,
        version: str | None = None,
        tool: str | None = None,
        code: int | None = None,
        is_error: bool = False,
    ) -> None:
        """A request of MCP. `None` stands for a method, or a tool, that callers made up; `code` is of an error."""
        ...

    def responded(self, method: str, *, route: str, status: int, seconds: float) -> None:
        """A request of REST. `route` is the path of its operation; 0 is the status of one without an answer."""
        ...

    def turned_away(self, status: int) -> None:
        """A request of HTTP was answered with an error."""
        ...

    def session_ended(self, version: str, seconds: float) -> None:
        """A session of a client that has one."""
        ...
