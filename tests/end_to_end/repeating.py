"""A tool that gives back a million characters of what it is given."""


def repeat(text: str) -> str:
    return text * (1_000_000 // len(text))
