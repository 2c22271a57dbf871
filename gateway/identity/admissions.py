"""Who was let in a moment ago, and who is let in no more.

Verified credentials are remembered by their digest, for a minute at most and never past their own end, so that a
credential that is sent with every request is verified once. Nothing here outlives the process; what does is asked.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gateway.errors import CredentialUnknown, StoreUnavailable
from gateway.governance.principals import Principal
from gateway.governance.revocations import RevokedTokens

REMEMBERED_FOR: Final = timedelta(seconds=60)
CAPACITY: Final = 10_000


@dataclass(frozen=True, slots=True, repr=False)
class Admission:
    """A verified credential: whose it is, when it ends, and the names it can be revoked by."""

    principal: Principal
    until: datetime
    token_ids: frozenset[str]


@dataclass(frozen=True, slots=True, repr=False)
class _Entry:
    admission: Admission
    since: datetime
    until: datetime


class Admissions:
    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._entries: dict[bytes, _Entry] = {}
        self._revoked_tokens: set[str] = set()
        self._revoked_subjects: set[str] = set()
        self._revoked_elsewhere: RevokedTokens | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def recall(self, digest: bytes, now: datetime) -> Principal | None:
        entry = self._entries.get(digest)
        # An entry from the future tells that the clock was set back: verify again.
        if entry is None or not entry.since <= now < entry.until:
            return None
        if self._is_revoked_elsewhere(entry.admission):
            return None
        return entry.admission.principal

    def remember(self, digest: bytes, admission: Admission, *, now: datetime) -> None:
        self._entries.pop(digest, None)
        if len(self._entries) >= self._capacity:
            # The oldest is the first: entries are put at the end, and all live equally long.
            del self._entries[next(iter(self._entries))]
        until = min(admission.until, now + REMEMBERED_FOR)
        self._entries[digest] = _Entry(admission, now, until)

    def heed(self, revoked: RevokedTokens) -> None:
        self._revoked_elsewhere = revoked

    def forget(self) -> None:
        self._entries.clear()

    def revoke(self, *, token: str | None = None, subject: str | None = None) -> None:
        if token is not None:
            # A digest may be written in capitals; taking one token too many is better than leaving one.
            self._revoked_tokens |= {token, token.lower()}
        if subject is not None:
            self._revoked_subjects.add(subject)
        self._entries = {key: entry for key, entry in self._entries.items() if not self.is_revoked(entry.admission)}

    def is_revoked(self, admission: Admission) -> bool:
        is_listed = not self._revoked_tokens.isdisjoint(admission.token_ids)
        is_listed = is_listed or admission.principal.subject in self._revoked_subjects
        return is_listed or self._is_revoked_elsewhere(admission)

    def knows_revocations(self) -> bool:
        try:
            return self._revoked_elsewhere is None or not self._revoked_elsewhere.has_any(frozenset())
        except StoreUnavailable:
            return False

    def _is_revoked_elsewhere(self, admission: Admission) -> bool:
        if self._revoked_elsewhere is None:
            return False
        try:
            return self._revoked_elsewhere.has_any(admission.token_ids)
        except StoreUnavailable as error:
            raise CredentialUnknown(help="try again in a moment") from error
