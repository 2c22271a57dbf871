"""The attestations of a project as the review reads them, and their problems."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time

from gateway.config import AttestationDocument, CheckedDocument, ConfigDocuments, GatewayDocument
from gateway.policy import Access, PolicySet
from gateway.registries import Diagnostic
from gateway.review import (
    AccessScopes,
    Attestation,
    AttestationPolicy,
    AttestedAccess,
    check_attestations,
    list_owners,
    list_policy_rows,
)


def find_attestation_problems(
    access: Access, loaded: ConfigDocuments, policies: PolicySet, *, environment: str | None, today: date
) -> Iterator[Diagnostic]:
    """Yield the problems of the attestations of an environment. Without one, access is not enumerated."""
    attestations = list_attestations(loaded, environment=environment)
    required = find_attestation_policy(access, loaded)
    if attestations or required is not None:
        noon = datetime.combine(today, time(12), UTC)
        scopes = AccessScopes(access, list_policy_rows(policies, noon), at=noon)
        yield from check_attestations(attestations, required, scope_of=scopes.find, today=today)


def list_attestations(loaded: ConfigDocuments, *, environment: str | None) -> list[Attestation]:
    """Return the attestations for this environment.

    One that names no environment is for all of them in which its owner has no other.
    """
    found = [
        _to_attestation(each.spec, each) for each in loaded.documents if isinstance(each.spec, AttestationDocument)
    ]
    named = [each for each in found if environment is not None and each.environment == environment]
    owners = {each.owner for each in named}
    return [*named, *(each for each in found if each.environment is None and each.owner not in owners)]


def find_attestation_policy(access: Access, loaded: ConfigDocuments) -> AttestationPolicy | None:
    """Return what the Gateway requires; without a list of owners, an attestation of each of them."""
    for each in loaded.documents:
        if isinstance(each.spec, GatewayDocument) and (review := each.spec.spec.access_review) is not None:
            owners = review.owners or tuple(list_owners(access.snapshot))
            return AttestationPolicy(owners, review.every, each.source.key_position(("spec", "accessReview")))
    return None


def _to_attestation(document: AttestationDocument, checked: CheckedDocument) -> Attestation:
    spec = document.spec
    entries = (AttestedAccess(each.catalogue, each.callers, each.objects, each.may, each.gates) for each in spec.access)
    return Attestation(
        document.metadata.name,
        document.metadata.owner,
        spec.by,
        spec.date,
        spec.until,
        spec.digest,
        tuple(entries),
        checked.source.position(("metadata", "name")),
        checked.source.position(("spec", "until")),
        spec.environment,
    )
