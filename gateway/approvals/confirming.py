"""Confirmations: what whoever makes a call is asked about it, and the proof that it was this very call they confirmed.

A confirmation is no approval: the one who asks and the one who answers are the same, and it counts for nobody else.
What proves it is a seal with the secret of the turn that the question was asked in, which every process knows.
"""

import hmac
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from gateway.approvals.showing import plain, shown_arguments
from gateway.governance.approvals import Action

LONGEST_TEXT: Final = 32 << 10
"""Characters of a question: what is longer nobody reads before they say yes."""

_CONFIRMED: Final = b"confirmed"
_ASKED: Final = b"asked"


def question_text(action: Action, *, advertised: str, reasons: Sequence[str], show: Sequence[str]) -> str | None:
    """What whoever calls is asked. Without `show` they see every argument; `None` if that is too much to be read."""
    arguments, left_out = shown_arguments(action.arguments, show)
    lines = [
        "Shall this call be made in your name?",
        f"Tool: {plain(advertised)} (catalogue {plain(action.catalogue)})",
        *(f"Why you are asked: {plain(reason)}" for reason in reasons),
        "Arguments, as whoever calls the tool for you chose them; texts in them may be a stranger's:",
    ]
    for each in arguments:
        unseen = f"  [{each.unseen} characters in it cannot be seen]" if each.unseen else ""
        lines.append(f"- {each.name}: {each.value}{unseen}")
    if left_out:
        lines.append(f"({left_out} more arguments are not shown)")
    text = "\n".join(lines)
    return text if len(text) <= LONGEST_TEXT else None


def seal_of_question(secret: bytes, content: bytes) -> bytes:
    """For what a client carries from a question to its answer."""
    return hmac.new(secret, _ASKED + b"\0" + content, sha256).digest()


def seal_of_confirmed(secret: bytes, digest: str) -> str:
    """That the caller has confirmed the action of that digest, in the turn of that secret."""
    return hmac.new(secret, _CONFIRMED + b"\0" + digest.encode(), sha256).hexdigest()[:32]
