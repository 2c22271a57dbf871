"""Compares the authoriser with the reference on random policies and requests: `differential.py [PAIRS] [SEED]`."""

import sys
import time
from collections.abc import Callable
from random import Random

from gateway.policy.authoriser import AccessRequest
from gateway.policy.casbin.enforcer import CasbinAuthoriser
from gateway.policy.casbin.policy_files import PolicySet
from tests.policy.casbin.policy_samples import RANKS, random_policies, random_request
from tests.policy.casbin.reference import ReferenceAuthoriser

Difference = tuple[PolicySet, AccessRequest]
REQUESTS_PER_POLICY = 100


def differences(pairs: int, *, seed: int, progress: Callable[[int], None] = lambda done: None) -> list[Difference]:
    """The pairs for which the two disagree on the verdict or on the row that explains it."""
    random = Random(seed)
    found = []
    for done in range(0, pairs, REQUESTS_PER_POLICY):
        policies = random_policies(random)
        authoriser = CasbinAuthoriser(policies, ranks=RANKS)
        reference = ReferenceAuthoriser(policies, RANKS)
        for _ in range(REQUESTS_PER_POLICY):
            request = random_request(random)
            decision = authoriser.decide(request)
            if (decision.allowed, decision.row) != reference.decide(request):
                found.append((policies, request))
        progress(done + REQUESTS_PER_POLICY)
    return found


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns()
    print(f"{pairs:,} pairs, seed {seed}", flush=True)

    def show(done: int) -> None:
        if done % 100_000 == 0 or done >= pairs:
            print(f"\r{done:,} of {pairs:,}", end="", flush=True)

    found = differences(pairs, seed=seed, progress=show)
    print(f"\n{len(found)} differences")
    for policies, request in found[:10]:
        print(request, *policies.permissions, sep="\n  ")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
