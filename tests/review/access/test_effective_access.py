"""The enumeration of access against the functions that decide calls, asked about every pair."""

import os
from random import Random

from gateway.model.caller import Principal
from gateway.review.access.access_review import AccessReview, review_access
from gateway.review.access.effective_access import EVERYWHERE
from tests.review.access.random_worlds import (
    CALLERS,
    NOW,
    ROLES,
    Answer,
    World,
    ask_about_config,
    ask_about_pair,
    objects_of,
    random_world,
)

PAIRS = int(os.environ.get("ACCESS_PAIRS", "5000"))
SEED = int(os.environ.get("ACCESS_SEED", "1"))


def list_answers(review: AccessReview) -> dict[tuple[str, str, str], set[Answer]]:
    found: dict[tuple[str, str, str], set[Answer]] = {}
    for block in review.blocks:
        places = {
            (right.action, None if right.row is None else (right.row.position.file, right.row.position.line))
            for right in block.rights
        }
        for caller in review.callers.list_names(block.callers):
            for object in block.objects:
                key = caller, block.catalogue, object
                assert key not in found, "a pair has one answer"
                found[key] = places
    return found


def random_callers(random: Random) -> dict[str, Principal]:
    """Callers as documents and policies have them, and some with roles of a token."""
    plain = {name: Principal(name) for name in CALLERS}
    roles = {f"user:token-{number}": frozenset(random.sample(ROLES, random.randrange(4))) for number in range(4)}
    return {**plain, **{name: Principal(name, held) for name, held in roles.items()}}


def compare_world(world: World, callers: dict[str, Principal]) -> int:
    """Compare all pairs of a world; return how many there are."""
    answers = list_answers(review_access(world.access, world.rows, at=NOW, callers=callers))
    pairs = 0
    for name, principal in callers.items():
        for catalogue in world.snapshot.catalogues.values():
            for object in objects_of(catalogue):
                asked = ask_about_pair(world, principal, catalogue.name, object)
                assert answers.pop((name, catalogue.name, object), set()) == asked, (name, catalogue.name, object)
                pairs += 1
        config = {action for action, _ in answers.pop((name, EVERYWHERE, "config"), set())}
        metrics = {"metrics"} if config else set()
        assert (config & {"administer"}) | metrics == ask_about_config(world, principal), name
    assert not answers, "no access besides that of the pairs"
    return pairs


def test_enumeration_equals_asking_about_every_pair() -> None:
    pairs, seed = 0, SEED
    while pairs < PAIRS:
        random = Random(seed)
        try:
            pairs += compare_world(random_world(random), random_callers(random))
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        seed += 1
