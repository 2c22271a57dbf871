"""The roles that grants add to a caller's own, decided again for every request by the policy that is served.

If the store cannot be read, grants add nothing. A grant ends by the clock in every process, without a timer.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from gateway.errors import StoreUnavailable
from gateway.model import Principal
from gateway.policy.forward_clock import forward_now
from gateway.policy.grants.grant import Grant, GrantSource
from gateway.policy.grants.grant_limits import RolesOf, why_not_in_force
from gateway.registries import GrantPolicy

_log: Final = logging.getLogger(__name__)


class GrantedRoles:
    """The grants in force under one revision."""

    def __init__(
        self,
        policies: Mapping[str, GrantPolicy],
        source: GrantSource,
        roles_of: RolesOf,
        *,
        clock: Callable[[], datetime] = forward_now,
    ) -> None:
        """`roles_of` must not include granted roles, or a grant could justify another one."""
        self._policies = policies
        self._source = source
        self._roles_of = roles_of
        self._clock = clock

    def find(self, principal: Principal) -> tuple[Grant, ...]:
        """Return the caller's grants in force. Never raises: what goes wrong grants nothing."""
        try:
            ledger = self._source.current()
            own = ledger.by_recipient.get((principal.tenant, principal.subject))
            if not own:
                return ()
            at = self._clock()
            return tuple(grant for grant in own if self._is_in_force(grant, principal, ledger.grants, at))
        except StoreUnavailable:
            return ()
        except Exception:  # fail closed
            _log.exception("the grants in force cannot be determined")
            return ()

    def _is_in_force(self, grant: Grant, principal: Principal, others: Sequence[Grant], at: datetime) -> bool:
        policy = self._policies.get(grant.policy)
        return why_not_in_force(grant, principal, policy, others, at, self._roles_of) is None
