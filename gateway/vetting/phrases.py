"""Words by which a definition speaks to the model instead of describing a tool.

The list is short on purpose: each entry is one way of taking over, and what real definitions say is not among them. It
is a hint for people, never a proof; whoever wants to pass it can.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from gateway.governance.unseen import hidden_in

_RULES: Final = r"(?:instruction|prompt|rule|guideline|message|direction|policy|policie|command|constraint)s?"
_PEOPLE: Final = r"(?:users?|humans?|anyone|anybody|customer|operator|person)"
_TELL: Final = r"(?:tell|mention|inform|reveal|notify|alert|disclose|disclos|warn)(?:ing)?"
_HAND: Final = (
    "read|send|include|pass|provide|attach|append|upload|forward|copy|put|paste|cat|fetch|submit|contents? of"
)
_FILES: Final = (
    r"~/\.|/home/|/root/|/etc/passwd|/etc/shadow|id_rsa|\.ssh\b|\.aws/|\.env\b|\.netrc|\.npmrc|\.kube/|mcp\.json"
)
_TALK: Final = "private keys?|system prompt|environment variables|(?:chat|conversation) history"
_ALL_OF_IT: Final = "(?:whole|entire|full|previous) conversation"
_BEFORE: Final = "before|prior to|instead of|after|whenever"
_OTHERS: Final = r"(?:any|every|all|each)\s+(?:of\s+)?(?:the\s+)?(?:other\s+)?(?:tools?|functions?|calls?|actions?)"


@dataclass(frozen=True, slots=True)
class Phrase:
    """One way of speaking to the model. `says` completes the sentence "it tells the model ..."."""

    says: str
    pattern: re.Pattern[str]


def _phrase(says: str, pattern: str) -> Phrase:
    return Phrase(says, re.compile(pattern, re.IGNORECASE))


PHRASES: Final = (
    _phrase(
        "to drop other instructions",
        r"\b(?:ignore|disregard|forget|override|bypass)\b[^.]{0,30}"
        r"\b(?:previous|prior|above|earlier|all|any|other|your|system|user'?s?)\b[^.]{0,25}"
        rf"\b{_RULES}\b",
    ),
    _phrase(
        "to keep something from people",
        r"\b(?:do not|don'?t|never|must not|mustn'?t|without|avoid|refrain from)\b[^.]{0,20}"
        rf"\b{_TELL}\b[^.]{{0,25}}\b{_PEOPLE}\b",
    ),
    _phrase(
        "to call it before or instead of other tools",
        rf"\b(?:always|must|first|required to|have to|need to|should)\b[^.]{{0,60}}\b(?:{_BEFORE})\b[^.]{{0,30}}"
        rf"\b{_OTHERS}\b",
    ),
    _phrase(
        "to prefer it over others",
        r"\b(?:prefer|choose|select|use|call|prioriti[sz]e)\b[^.]{0,25}\bthis (?:tool|function|one)\b[^.]{0,20}"
        r"\b(?:over|instead of|rather than|and not|above)\b[^.]{0,15}\b(?:any|all|every|others?|similar)\b",
    ),
    _phrase(
        "to hand over secrets or the conversation",
        rf"\b(?:{_HAND})\b[^.]{{0,60}}?(?:{_FILES}|{_TALK}|{_ALL_OF_IT})",
    ),
    _phrase(
        "something in markup made for models",
        r"<\s*/?\s*(?:important|system|secret|instructions?|critical|admin|hidden|assistant)\b[^>]{0,40}>"
        r"|<\|(?:im_start|im_end|system|endoftext)\|>|\[/?(?:INST|SYSTEM)\]|(?:^|\n)\s*(?:system|assistant)\s*:\s",
    ),
)


def phrase_in(text: str) -> tuple[Phrase, str] | None:
    """The first phrase of a text, with the words that are it."""
    plain = _plain(text)
    for phrase in PHRASES:
        found = phrase.pattern.search(plain)
        if found is not None:
            return phrase, found[0].strip()
    return None


def _plain(text: str) -> str:
    """As a model may read it: compatibility forms folded, what hides words taken away."""
    hidden = {index for index, _ in hidden_in(text)}
    seen = "".join(char for index, char in enumerate(text) if index not in hidden) if hidden else text
    return re.sub(r"[^\S\n]+", " ", unicodedata.normalize("NFKC", seen)).replace("\u2019", "'")
