"""Answers who may do what. Casbin makes every decision, on the few rows an index says could matter.

Why it was made is found by walking the same rows; if that walk and Casbin ever disagree, the answer is no. Roles are
followed here and handed over as one set: Casbin's role manager would remember every unknown name it was asked about.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from threading import Lock
from typing import Any, Final

import casbin
from casbin.util import SimpleEval

from gateway.authz.closure import above, graph, reach
from gateway.authz.index import RowIndex
from gateway.authz.lint import KnownNames, lint
from gateway.authz.matching import ACTIONS, covers, does, holds, is_name, is_object, is_subject, names, within
from gateway.authz.model import MODEL
from gateway.authz.rules import Permission, PolicySet
from gateway.errors import ProgramError
from gateway.governance.ports import AccessDecision, AccessRequest

_MOST_HELD: Final = 1024
"""Callers whose roles are remembered: asked for several times in every request."""

_log: Final = logging.getLogger(__name__)


class CasbinAuthoriser:
    """The authoriser of one revision of the policies; a changed policy is a new authoriser.

    `decide` may be called from any number of threads: everything but the memory of decisions is immutable, and each
    fresh decision gets an enforcer of its own.
    """

    def __init__(
        self,
        policies: PolicySet,
        *,
        ranks: Mapping[str, int],
        known: KnownNames | None = None,
        cache_size: int = 65_536,
    ) -> None:
        """Raises `ProgramError` for rows with errors: Casbin would ignore a misspelt deny without a word.

        With `known` names, requests about tools, classes and catalogues that nobody declared are denied, too.
        """
        self._known = known or KnownNames()
        _refuse_errors(policies, ranks)
        groups = above(graph(policies.objects))
        self._members = graph(policies.members)
        self._ranks = dict(ranks)
        self._index = RowIndex(sorted(policies.permissions, key=lambda row: row.position), groups)
        self._enforcer = _enforcer(
            holds=holds,
            names=names,
            covers=partial(covers, groups=groups),
            does=does,
            within=partial(within, ranks=self._ranks),
        )
        self._remembered = _Memory(cache_size)
        self._held: dict[frozenset[str], frozenset[str]] = {}

    def held_by(self, names: frozenset[str]) -> frozenset[str]:
        held = self._held.get(names)
        if held is None:
            held = reach(names, self._members)
            if len(self._held) >= _MOST_HELD:
                self._held.clear()
            self._held[names] = held
        return held

    def decide(self, request: AccessRequest) -> AccessDecision:
        try:
            remembered = self._remembered
            return remembered.young.get(request) or remembered.renewed(request) or self._decided(request)
        except Exception as error:  # whatever it is, the answer is no
            _log.exception("authorisation failed")
            return AccessDecision(False, f"authorisation failed ({type(error).__name__})", is_unanswered=True)

    def _decided(self, request: AccessRequest) -> AccessDecision:
        refusal = self._refusal(request)
        if refusal is not None:  # not remembered: such requests could be of any size and number
            return AccessDecision(False, refusal, is_unanswered=True)
        who = self.held_by(request.names)
        rows = self._index.candidates(who, catalogue=request.catalogue, object=request.object, action=request.action)
        enforcer = _showing(self._enforcer, _differing(rows))
        verdict = enforcer.enforce(who, request.catalogue, request.object, request.action, request.tier)
        matching = [row for row in rows if within(request.tier, row.tier.text, self._ranks)]
        decision = explained(verdict, matching)
        self._remembered.put(request, decision)
        return decision

    def _refusal(self, request: AccessRequest) -> str | None:
        """Why no row need be looked at: something in the request is not a name anybody could have meant."""
        if not request.names:
            return "the caller has no name"
        if not all(map(is_subject, request.names)):
            return "one of the caller's names is not a legal subject"
        if not is_name(request.catalogue) or not _declares(self._known.catalogues, request.catalogue):
            return "there is no such catalogue"
        kind, _, name = request.object.partition(":")
        if not is_object(request.object) or not _declares(self._known.of_kind(kind), name):
            return "there is no such object"
        if request.action not in ACTIONS:
            return "there is no such action"
        if request.tier not in self._ranks:
            return "there is no such tier"
        return None


def explained(verdict: bool, matching: Sequence[Permission]) -> AccessDecision:
    """The verdict with the first row that explains it; a verdict the rows do not explain becomes a denial."""
    deny = next((row for row in matching if row.effect.text == "deny"), None)
    allow = next((row for row in matching if row.effect.text == "allow"), None)
    row = deny or allow
    if verdict is not (row is not None and row is allow):
        reason = "the policy engine and the explanation of its verdict disagree"
        return AccessDecision(False, reason, is_unanswered=True)
    if row is None:
        return AccessDecision(False, "no row of the policy matches")
    place = f"{row.position.file}:{row.position.line}"
    word = "allowed" if verdict else "denied"
    return AccessDecision(verdict, f"{word} to {row.subject.text} by {place}", row.position, row.subject.text)


class _Memory:
    """Recent decisions in two generations: what is asked for again moves to the young one, the old is dropped whole.

    Reading takes no lock. A race loses at most a remembered decision, and decisions are the same however often made.
    """

    def __init__(self, size: int) -> None:
        self._half = max(1, size // 2)
        self.young: dict[AccessRequest, AccessDecision] = {}
        self._old: dict[AccessRequest, AccessDecision] = {}
        self._lock = Lock()

    def renewed(self, request: AccessRequest) -> AccessDecision | None:
        """What the old generation remembers; from then on the young one does."""
        decision = self._old.get(request)
        if decision is not None:
            self.put(request, decision)
        return decision

    def put(self, request: AccessRequest, decision: AccessDecision) -> None:
        with self._lock:
            if len(self.young) >= self._half:
                self._old, self.young = self.young, {}
            self.young[request] = decision


def _refuse_errors(policies: PolicySet, ranks: Mapping[str, int]) -> None:
    errors = [found for found in lint(policies, KnownNames(tiers=ranks)) if found.is_error]
    if errors:
        first = errors[0]
        message = f"the policies have {len(errors)} errors; the first: {first.position}: {first.code}: {first.message}"
        raise ProgramError(message, help=first.help)


def _declares(known: frozenset[str] | None, name: str) -> bool:
    return known is None or name in known


def _enforcer(**functions: Any) -> Any:
    """Casbin with our model and functions and nothing else: no built-in matchers, no role manager, no saving."""
    model = casbin.Model()
    model.load_model_from_text(MODEL)
    enforcer = casbin.Enforcer(model)  # this also disables Casbin's own loggers: decisions are ours to tell
    enforcer.enable_auto_save(False)
    enforcer.rm_map = {}
    enforcer.fm.fm = functions
    enforcer._get_expression = _parsing_once(enforcer._get_expression)
    return enforcer


def _parsing_once(parse: Callable[[str], Any]) -> Callable[[str, Any], Any]:
    """Casbin parses its matcher for every decision, which is most of what a decision costs; the tree never changes."""
    tree = cache(lambda text: parse(text).ast_parsed_value)

    def expression(text: str, functions: Any) -> Any:
        evaluator = SimpleEval("", functions)
        evaluator.ast_parsed_value = tree(text)
        return evaluator

    return expression


def _differing(rows: Iterable[Permission]) -> Iterable[Permission]:
    """One row of each ceiling and effect: candidates fit the request in every other column, so these decide alike.

    It bounds what Casbin has to look at, for callers with hundreds of roles, too. Should a candidate not fit after all,
    Casbin and the explanation disagree, which is a denial.
    """
    return {(row.tier.text, row.effect.text): row for row in rows}.values()


def _showing(enforcer: Any, rows: Iterable[Permission]) -> Any:
    """A copy of the enforcer that sees these rows: swapping rows in a shared one would be seen by other threads."""
    shown = copy.copy(enforcer)
    shown.model = copy.copy(enforcer.model)
    definition = copy.copy(enforcer.model["p"]["p"])
    definition.policy = [row.texts for row in rows]
    shown.model.model = {**enforcer.model.model, "p": {"p": definition}}
    return shown
