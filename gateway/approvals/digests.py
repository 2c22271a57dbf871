"""What an approval is bound to, as text and as a digest.

Numbers are written in full (`exact_json`): an approval for one account number does not cover another.
"""

from hashlib import sha256
from typing import Any

from gateway.core.exact_json import exact_json
from gateway.governance.approvals import Action
from gateway.governance.principals import Principal


def action_of(
    principal: Principal, *, catalogue: str, tool: str, definition: str, revision: str, arguments: Any
) -> Action:
    """The action with its digest. Raises `ValueError` or `TypeError` for arguments that are not JSON."""
    text = exact_json(arguments)
    named = {
        "principal": {"roles": sorted(principal.roles), "subject": principal.subject, "tenant": principal.tenant},
        "catalogue": catalogue,
        "tool": tool,
        "definition": definition,
        "revision": revision,
    }
    # Sorted like any other key, "arguments" comes first.
    digest = digest_of(f'{{"arguments":{text},{exact_json(named)[1:]}')
    return Action(principal, catalogue, tool, definition, revision, text, digest)


def digest_of(text: str) -> str:
    return sha256(text.encode()).hexdigest()
