"""The sections of the page by their anchors, in their order."""

from typing import Final

TITLES: Final = {
    "summary": "Summary",
    "revision": "Revision",
    "installation": "Installation",
    "catalogues": "Catalogues and their tools",
    "flags": "Flags and what each one causes",
    "trust": "Trust matrix",
    "hazards": "Who can move money, destroy or send data out",
    "rules": "Gate rules and their tests",
    "changes": "Controls changed",
    "access-changes": "Access gained and lost",
    "replay": "Recorded calls decided again",
    "access-use": "Unused access and attestations",
    "definitions": "Imported definitions",
    "collisions": "Collisions of names",
    "artifacts": "Artifact classes",
    "limits": "Limits",
    "identities": "Identities and approvers",
    "grants": "Grants and rows that end",
    "quarantines": "Quarantines",
    "audit": "Decision log",
    "diagnostics": "Diagnostics",
    "dependencies": "Dependencies",
}
"""Sections by their anchors, in the order of the page."""


def section_field(anchor: str) -> str:
    """Return the field of the report that has the data of a section."""
    return anchor.replace("-", "_")
