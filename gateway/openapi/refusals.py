"""What an OpenAPI document, one of its operations or the arguments of a call can be refused for."""


class OpenApiInvalid(Exception):
    """The document as a whole cannot be used. The message is one line; `help` says what to do."""

    def __init__(self, message: str, *, help: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.help = help


class Unusable(Exception):
    """A part of the document cannot be used, so no tool is made of the operation that it belongs to."""


class NotWritable(Exception):
    """A value cannot stand where its argument goes."""

    def __init__(self, argument: str, what: str) -> None:
        super().__init__(f"argument {argument[:80]!r} {what}")
