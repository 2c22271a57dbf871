"""Warns about attestations that are missing, over, or altered, and about access that has grown since."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from gateway.registries import Diagnostic, Position
from gateway.review.access.attestation import AccessGrowth, Attestation, AttestedAccess, find_growth

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class AttestationPolicy:
    """Which owners must attest their access, and how often, by the `accessReview` of the Gateway."""

    owners: tuple[str, ...]
    every: timedelta
    position: Position


def check_attestations(
    attestations: Sequence[Attestation],
    policy: AttestationPolicy | None,
    *,
    scope_of: Callable[[str], Iterable[AttestedAccess]],
    today: date,
) -> Iterator[Diagnostic]:
    """Yield a warning for each problem. Without a policy, no attestation is missing or too old before its day."""
    attested = {each.owner for each in attestations}
    if policy is not None:
        for owner in policy.owners:
            if owner not in attested:
                message = f"{owner!r} has not attested the access to what it owns"
                help = f"look at gateway access --owner {owner}, then run gateway access attest --owner {owner}"
                yield Diagnostic("attestation-missing", message, policy.position, "warning", help)
    for each in attestations:
        if not each.is_intact:
            yield _problem(
                each, "attestation-altered", "the list of access does not have the digest that was attested", again=True
            )
            continue
        if (last := find_last_day(each, policy)) < today:
            message = f"the last day of the attestation was {last}"
            yield _problem(each, "attestation-expired", message, position=each.until_position, again=True)
        grown = list(find_growth(each.access, scope_of(each.owner)))
        if grown:
            yield _problem(each, "access-grown", f"access has grown since {each.on}: {describe_growth(grown)}")


def find_last_day(attestation: Attestation, policy: AttestationPolicy | None) -> date:
    """Return the last day on which the attestation counts."""
    if policy is None or attestation.owner not in policy.owners:
        return attestation.until
    return min(attestation.until, attestation.on + policy.every)


def describe_growth(grown: Sequence[AccessGrowth]) -> str:
    """Return the first entries in words, and the number of further ones."""
    words = "; ".join(map(format_growth, grown[:_SHOWN]))
    left = len(grown) - _SHOWN
    return f"{words}; and {left} more" if left > 0 else words


def format_growth(grown: AccessGrowth) -> str:
    what = grown.object.removeprefix("tool:")
    where = "" if grown.catalogue == "*" else f" in {grown.catalogue}"
    parts = [f"can {' and '.join(grown.actions)} {what}{where}"] if grown.actions else []
    if grown.without:
        parts.append(f"calls {what}{where} without {' and '.join(grown.without)}")
    return f"{grown.caller} {' and '.join(parts)}"


def _problem(
    attestation: Attestation, code: str, message: str, *, position: Position | None = None, again: bool = False
) -> Diagnostic:
    first = "attest it again" if again else "look at it, and attest it again or take it back"
    help = f"{first}: gateway access attest --owner {attestation.owner}"
    return Diagnostic(code, message, position or attestation.position, "warning", help)
