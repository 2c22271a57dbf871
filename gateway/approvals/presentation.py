"""How a held call is shown to approvers: every argument that the rule shows, in full, hidden characters escaped.

Arguments are shown as JSON in which every character that a screen would obey, reorder or not draw is an escape. That
text is still JSON for the same value, so it can be neither mistaken nor forged. All of it came from the caller, who may
be repeating a stranger's text: it is marked as such.

`format_question` asks the caller of a call for a confirmation. That is not an approval: the requester confirms it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from gateway.approvals.approval_store import ApprovalRecord, ApprovalSubject, hash_text
from gateway.model import exact_json, is_unseen

_LONGEST_PIECE: Final = 40
_LONGEST_EXCERPT: Final = 120

_SUSPECT: Final = re.compile(r"[^\n\x20-\x7e]")
_LAYOUT: Final = re.compile(r"[\n\t]")


@dataclass(frozen=True, slots=True)
class ArgumentView:
    """One argument. `value` is JSON; `unseen` counts the characters in it that a screen would not show."""

    name: str
    value: str
    unseen: int
    origin: Literal["caller"] = "caller"


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """The complete view. `left_out` is how many arguments the rule does not show; nothing else is left out."""

    arguments: tuple[ArgumentView, ...]
    left_out: int
    digest: str


def make_view(record: ApprovalRecord) -> ApprovalView:
    request, action = record.request, record.request.action
    arguments, left_out = view_arguments(action.arguments, request.show)
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
    return ApprovalView(arguments, left_out, hash_text(exact_json(seen)))


def view_arguments(arguments: str, show: Sequence[str]) -> tuple[tuple[ArgumentView, ...], int]:
    """Return the shown ones of arguments given as JSON, and how many are not shown."""
    given: dict[str, Any] = json.loads(arguments)
    chosen = _select(given, show)
    return tuple(_argument(name, value) for name, value in chosen.items()), len(given) - len(chosen)


def excerpt(record: ApprovalRecord) -> str:
    """Return the shown arguments on one short line: to distinguish calls, not to decide on."""
    chosen = _select(json.loads(record.request.action.arguments), record.request.show)
    return _cut(" ".join(f"{escape_invisible(_piece(name))}={_in_one_line(value)}" for name, value in chosen.items()))


def escape_invisible(text: str) -> str:
    """Escape everything a screen would not show, and backslashes, so that no escape can be forged."""
    return _SUSPECT.sub(_escape, text.replace("\\", "\\\\").replace("\n", "\\n"))


def _select(given: dict[str, Any], show: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in given if name in show} if show else given


def _in_one_line(value: Any) -> str:
    return _SUSPECT.sub(_escape, _piece(json.dumps(value, ensure_ascii=False, sort_keys=True)))


def _piece(text: str) -> str:
    return _cut(text, _LONGEST_PIECE)


def _cut(text: str, longest: int = _LONGEST_EXCERPT) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _argument(name: str, value: Any) -> ArgumentView:
    # `json` escapes line ends inside texts; the remaining ones are its layout.
    text = _SUSPECT.sub(_escape, json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True))
    return ArgumentView(escape_invisible(name), text, sum(map(_count_unseen, [name, *_texts(value)])))


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    if not is_unseen(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _count_unseen(text: str) -> int:
    """Return the number of invisible characters except line ends and tabs, which are harmless."""
    return sum(is_unseen(each) for each in _SUSPECT.findall(_LAYOUT.sub("", text)))


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


LONGEST_TEXT: Final = 32 << 10
"""Characters of a question: people do not read longer ones before they agree."""


def format_question(
    action: ApprovalSubject, *, advertised: str, reasons: Sequence[str], show: Sequence[str]
) -> str | None:
    """Return the question to the caller, with every argument unless `show` is given; `None` if it is too long."""
    arguments, left_out = view_arguments(action.arguments, show)
    lines = [
        "Shall this call be made in your name?",
        f"Tool: {escape_invisible(advertised)} (catalogue {escape_invisible(action.catalogue)})",
        *(f"Why you are asked: {escape_invisible(reason)}" for reason in reasons),
        "Arguments, as chosen by the program that calls for you; texts in them may come from strangers:",
    ]
    for each in arguments:
        unseen = f"  [{each.unseen} characters in it cannot be seen]" if each.unseen else ""
        lines.append(f"- {each.name}: {each.value}{unseen}")
    if left_out:
        lines.append(f"({left_out} more arguments are not shown)")
    text = "\n".join(lines)
    return text if len(text) <= LONGEST_TEXT else None
