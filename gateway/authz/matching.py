"""The five functions of the policy matcher, and what a legal name or pattern is.

All are pure and answer a real boolean (the policy engine refuses anything else). The only pattern is an anchored
glob in which `*` stands for any run of characters; nothing here can take longer than the texts are long.
"""

import re
from collections.abc import Mapping, Set
from typing import Final

from gateway.governance.globs import glob_matches
from gateway.governance.names import CONFIG, NAME, OBJECT_KINDS, PATTERN, SUBJECT_KINDS, SUBJECT_NAME

ACTIONS: Final = ("discover", "invoke", "read", "approve", "observe", "administer")
EFFECTS: Final = ("allow", "deny")

_NAME: Final = re.compile(NAME)
_PATTERN: Final = re.compile(PATTERN)
_SUBJECT_NAME: Final = re.compile(SUBJECT_NAME)


def holds(who: Set[str], subject: str) -> bool:
    """Whether the caller is, or inherits, the row's subject; `who` is already the whole set."""
    return subject in who


def names(catalogue: str, pattern: str) -> bool:
    return glob_matches(catalogue, pattern)


def covers(object: str, pattern: str, groups: Mapping[str, Set[str]]) -> bool:
    """Whether the pattern fits the object, or a group the object belongs to."""
    return glob_matches(object, pattern) or any(glob_matches(group, pattern) for group in groups.get(object, ()))


def does(action: str, actions: str) -> bool:
    """Whether the verb is one of a `|` list."""
    return action in actions.split("|")


def within(tier: str, ceiling: str, ranks: Mapping[str, int]) -> bool:
    """Whether the tier is at most as risky as the ceiling; a tier nobody declared never is."""
    return tier in ranks and ceiling in ranks and ranks[tier] <= ranks[ceiling]


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def is_pattern(text: str) -> bool:
    """A name in which single stars may stand."""
    return _PATTERN.fullmatch(text) is not None


def is_subject(text: str) -> bool:
    """`user:`, `agent:`, `service:` or `role:` and a name."""
    kind, _, name = text.partition(":")
    return kind in SUBJECT_KINDS and _SUBJECT_NAME.fullmatch(name) is not None


def is_object(text: str) -> bool:
    kind, _, name = text.partition(":")
    return text == CONFIG or (kind in OBJECT_KINDS and is_name(name))
