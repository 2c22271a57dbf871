"""A tool that returns its input."""


def echo(text: str) -> str:
    return text
