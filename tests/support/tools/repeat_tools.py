"""A tool that returns a million characters of its input."""


def repeat(text: str) -> str:
    return text * (1_000_000 // len(text))
