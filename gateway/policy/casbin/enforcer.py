"""The authoriser: Casbin makes every decision, on the few rows that an index selects.

A walk over the same rows explains the decision; if that walk and Casbin disagree, the request is denied. Roles are
resolved here and passed as one set: Casbin's role manager would cache every unknown name in a request.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from threading import Lock
from typing import Any, Final

import casbin
from casbin.util import SimpleEval

from gateway.errors import ProgramError
from gateway.policy.authoriser import AccessDecision, AccessRequest
from gateway.policy.casbin.lint import KnownNames, lint_policies
from gateway.policy.casbin.policy_files import MODEL_TEXT, PermissionRow, PolicySet
from gateway.policy.casbin.policy_index import (
    ACTIONS,
    RowIndex,
    build_role_graph,
    find_ancestors,
    find_parents,
    has_role,
    is_name,
    is_object,
    is_subject,
    is_within_tier,
    matches_action,
    matches_catalogue,
    matches_object,
)

_MOST_HELD: Final = 1024
"""Number of callers whose roles are cached: each request needs them several times."""

_log: Final = logging.getLogger(__name__)


class CasbinAuthoriser:
    """The authoriser of one revision of the policies; a changed policy is a new authoriser.

    `decide` may be called from any number of threads: everything except the cache of decisions is immutable, and each
    new decision gets its own enforcer.
    """

    def __init__(
        self,
        policies: PolicySet,
        *,
        ranks: Mapping[str, int],
        known: KnownNames | None = None,
        cache_size: int = 65_536,
    ) -> None:
        """Raise `ProgramError` for rows with errors: Casbin would silently ignore a misspelt deny.

        Rows with an end are refused, too: `PeriodAuthoriser` passes on the rows in force, without their ends. With
        `known` names, requests about undeclared tools, classes and catalogues are denied, too.
        """
        self._known = known or KnownNames()
        if policies.ending:
            raise ProgramError("the policies have rows that end, and only rows in force can decide")
        _refuse_errors(policies, ranks)
        groups = find_parents(build_role_graph(policies.objects))
        self._members = build_role_graph(policies.members)
        self._ranks = dict(ranks)
        self._index = RowIndex(sorted(policies.permissions, key=lambda row: row.position), groups)
        self._enforcer = _enforcer(
            holds=has_role,
            names=matches_catalogue,
            covers=partial(matches_object, groups=groups),
            does=matches_action,
            within=partial(is_within_tier, ranks=self._ranks),
        )
        self._remembered = _Memory(cache_size)
        self._held: dict[frozenset[str], frozenset[str]] = {}

    def roles_of(self, names: frozenset[str]) -> frozenset[str]:
        held = self._held.get(names)
        if held is None:
            held = find_ancestors(names, self._members)
            if len(self._held) >= _MOST_HELD:
                self._held.clear()
            self._held[names] = held
        return held

    def decide(self, request: AccessRequest) -> AccessDecision:
        try:
            remembered = self._remembered
            return remembered.young.get(request) or remembered.renew(request) or self._decide(request)
        except Exception as error:  # fail closed
            _log.exception("authorisation failed")
            return AccessDecision(False, f"authorisation failed ({type(error).__name__})", is_unanswered=True)

    def _decide(self, request: AccessRequest) -> AccessDecision:
        refusal = self._refusal(request)
        if refusal is not None:  # not cached: such requests could be of any size and number
            return AccessDecision(False, refusal, is_unanswered=True)
        who = self.roles_of(request.names)
        rows = self._index.find_candidates(
            who, catalogue=request.catalogue, object=request.object, action=request.action
        )
        enforcer = _with_rows(self._enforcer, _remove_repetitions(rows))
        verdict = enforcer.enforce(who, request.catalogue, request.object, request.action, request.tier)
        matching = [row for row in rows if is_within_tier(request.tier, row.tier.text, self._ranks)]
        decision = explain_decision(verdict, matching)
        self._remembered.put(request, replace(decision, is_cached=True))
        return decision

    def _refusal(self, request: AccessRequest) -> str | None:
        """Return why the request is denied without a look at the rows: it contains an illegal or unknown name."""
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


def explain_decision(verdict: bool, matching: Sequence[PermissionRow]) -> AccessDecision:
    """Return the verdict with the first row that explains it; a verdict that no row explains becomes a denial."""
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
    """A cache of decisions in two generations: a hit in the old one moves to the young one; the old is dropped whole.

    Reading takes no lock. A race loses at most a cached decision, and deciding again gives the same result.
    """

    def __init__(self, size: int) -> None:
        self._half = max(1, size // 2)
        self.young: dict[AccessRequest, AccessDecision] = {}
        self._old: dict[AccessRequest, AccessDecision] = {}
        self._lock = Lock()

    def renew(self, request: AccessRequest) -> AccessDecision | None:
        """Return the old generation's decision and move it to the young one."""
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
    errors = [found for found in lint_policies(policies, KnownNames(tiers=ranks)) if found.is_error]
    if errors:
        first = errors[0]
        message = f"the policies have {len(errors)} errors; the first: {first.position}: {first.code}: {first.message}"
        raise ProgramError(message, help=first.help)


def _declares(known: frozenset[str] | None, name: str) -> bool:
    return known is None or name in known


def _enforcer(**functions: Any) -> Any:
    """Return Casbin with our model and functions only: no built-in matchers, no role manager, no saving."""
    model = casbin.Model()
    model.load_model_from_text(MODEL_TEXT)
    enforcer = casbin.Enforcer(model)  # this also disables Casbin's own loggers: the gateway logs decisions itself
    enforcer.enable_auto_save(False)
    enforcer.rm_map = {}
    enforcer.fm.fm = functions
    enforcer._get_expression = _cache_parser(enforcer._get_expression)
    return enforcer


def _cache_parser(parse: Callable[[str], Any]) -> Callable[[str, Any], Any]:
    """Return a cached parser: Casbin parses its matcher for every decision, which is most of the cost of one."""
    tree = cache(lambda text: parse(text).ast_parsed_value)

    def expression(text: str, functions: Any) -> Any:
        evaluator = SimpleEval("", functions)
        evaluator.ast_parsed_value = tree(text)
        return evaluator

    return expression


def _remove_repetitions(rows: Iterable[PermissionRow]) -> Iterable[PermissionRow]:
    """Return one row of each tier and effect: candidates match the request in every other column, so these suffice.

    This bounds the rows Casbin has to check, even for callers with hundreds of roles. Should a candidate not match
    after all, Casbin and the explanation disagree, which is a denial.
    """
    return {(row.tier.text, row.effect.text): row for row in rows}.values()


def _with_rows(enforcer: Any, rows: Iterable[PermissionRow]) -> Any:
    """Return a copy of the enforcer with these rows: other threads would see rows swapped in a shared one."""
    changed = copy.copy(enforcer)
    changed.model = copy.copy(enforcer.model)
    definition = copy.copy(enforcer.model["p"]["p"])
    definition.policy = [row.texts for row in rows]
    changed.model.model = {**enforcer.model.model, "p": {"p": definition}}
    return changed
