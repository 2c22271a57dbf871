"""Tools that return texts: their input, a page of it, or nothing but an error."""

from gateway.errors import ToolError


def echo(text: str, amount: float = 1, kind: str = "") -> str:
    return f"{text} {amount}"


def page(text: str, amount: float = 1, kind: str = "") -> str:
    return "\n".join(f"{number} {text}" for number in range(40))


def fail(text: str, amount: float = 1, kind: str = "") -> str:
    raise ToolError(text)
