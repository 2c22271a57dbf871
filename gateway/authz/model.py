"""The policy model, fixed in the program, and the check that a folder's `model.conf` says the same.

The file is there for readers and for other Casbin tools. Decisions are made with the text below, so nobody can weaken
the effect by editing a file; a file that differs in meaning is refused rather than ignored.
"""

import re
from collections.abc import Iterator
from typing import Final

from gateway.governance.diagnostics import Diagnostic, Position

MODEL: Final = """
[request_definition]
r = who, cat, obj, act, tier
[policy_definition]
p = sub, cat, obj, act, tier, eft
[role_definition]
g = _, _
g2 = _, _
[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))
[matchers]
m = holds(r.who, p.sub) && names(r.cat, p.cat) && covers(r.obj, p.obj) && does(r.act, p.act) && within(r.tier, p.tier)
"""

_HELP: Final = "the model is part of the gateway; restore the shipped model.conf and express the rule as rows"
_SPACE: Final = re.compile(r"\s+")


def model_problems(lines: Iterator[tuple[int, str]], *, file: str) -> list[Diagnostic]:
    """What differs in meaning from the shipped model; spaces and comments may."""
    left = {name: value for _, name, value in _definitions(enumerate(MODEL.splitlines(), 1))}
    found = []
    for line, name, value in _definitions(lines):
        if left.get(name) != value:
            found.append(_problem(f"{name!r} is not what the shipped model says here", file=file, line=line))
        left.pop(name, None)
    return found + [_problem(f"{name!r} is missing", file=file, line=1) for name in left]


def _definitions(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    """`(line, section.key, value without spaces)`; a line that is no definition comes with its own text as name."""
    section = ""
    for number, line in lines:
        text = line.partition("#")[0].strip()
        if not text or text.startswith(";"):
            continue
        if text.startswith("[") and text.endswith("]"):
            section = text[1:-1].strip()
            continue
        key, _, value = text.partition("=")
        yield number, f"{section}.{key.strip()}"[:80], _SPACE.sub("", value)


def _problem(message: str, *, file: str, line: int) -> Diagnostic:
    return Diagnostic("policy-model", message, Position(file, line), help=_HELP)
