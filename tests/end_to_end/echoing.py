"""A tool that gives back what it is given."""


def echo(text: str) -> str:
    return text
