"""What approvers see of a call: every argument that the rule shows, to the last character, and nothing that hides.

Arguments are shown as JSON in which every character that a screen would obey, reorder or not draw is an escape. That
text is still JSON and still means the same value, so it can be neither mistaken nor forged. All of it came from the
caller, who may be repeating what a stranger wrote: it is marked as such.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.approvals.digests import digest_of
from gateway.core.exact_json import exact_json
from gateway.governance.approvals import ApprovalRecord

_UNSEEN_LETTERS: Final = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, range(0xFE00, 0xFE10)))
    + "".join(map(chr, range(0xE0100, 0xE01F0)))
)
"""Drawn as nothing, though by their category they are letters, marks and symbols."""

_LONGEST_PIECE: Final = 40
_LONGEST_EXCERPT: Final = 120

_SUSPECT: Final = re.compile(r"[^\n\x20-\x7e]")
_LAYOUT: Final = re.compile(r"[\n\t]")


@dataclass(frozen=True, slots=True)
class ShownArgument:
    """One argument. `value` is JSON; `unseen` counts the characters in it that would not have been seen."""

    name: str
    value: str
    unseen: int
    origin: Literal["caller"] = "caller"


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to see. `left_out` is how many arguments the rule does not show; nothing else is left out."""

    arguments: tuple[ShownArgument, ...]
    left_out: int
    digest: str


def shown(record: ApprovalRecord) -> Shown:
    request, action = record.request, record.request.action
    arguments, left_out = shown_arguments(action.arguments, request.show)
    seen = {
        "id": record.id,
        "action": action.digest,
        "requester": [action.principal.tenant, action.principal.subject],
        "catalogue": action.catalogue,
        "tool": [request.advertised, action.tool],
        "rule": [request.rule, request.rule_at],
        "reason": request.reason,
        "approvers": [request.needed, *request.approvers],
        "expires": record.expires_at.isoformat(),
        "arguments": [[each.name, each.value] for each in arguments],
        "left_out": left_out,
    }
    return Shown(arguments, left_out, digest_of(exact_json(seen)))


def shown_arguments(arguments: str, show: Sequence[str]) -> tuple[tuple[ShownArgument, ...], int]:
    """Those that are shown, of arguments as JSON, and how many are not."""
    given: dict[str, Any] = json.loads(arguments)
    chosen = _chosen(given, show)
    return tuple(_argument(name, value) for name, value in chosen.items()), len(given) - len(chosen)


def excerpt(record: ApprovalRecord) -> str:
    """What is shown of the arguments on one short line: to tell calls apart, not to decide upon."""
    chosen = _chosen(json.loads(record.request.action.arguments), record.request.show)
    return _cut(" ".join(f"{plain(_piece(name))}={_in_one_line(value)}" for name, value in chosen.items()))


def plain(text: str) -> str:
    """A text with escapes for everything that would not be seen, and for backslashes, so that no escape is forged."""
    return _SUSPECT.sub(_escaped, text.replace("\\", "\\\\").replace("\n", "\\n"))


def _chosen(given: dict[str, Any], show: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in given if name in show} if show else given


def _in_one_line(value: Any) -> str:
    return _SUSPECT.sub(_escaped, _piece(json.dumps(value, ensure_ascii=False, sort_keys=True)))


def _piece(text: str) -> str:
    return _cut(text, _LONGEST_PIECE)


def _cut(text: str, longest: int = _LONGEST_EXCERPT) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _argument(name: str, value: Any) -> ShownArgument:
    # Inside texts `json` escapes line ends itself; those that are left are its layout.
    text = _SUSPECT.sub(_escaped, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True))
    return ShownArgument(plain(name), text, sum(map(_count_unseen, [name, *_texts(value)])))


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    if not _is_unseen(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _count_unseen(text: str) -> int:
    """Line ends and tabs are nothing to worry about; everything else that is not drawn may be."""
    return sum(_is_unseen(each) for each in _SUSPECT.findall(_LAYOUT.sub("", text)))


def _is_unseen(character: str) -> bool:
    return not character.isprintable() or character in _UNSEEN_LETTERS


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
