"""How stock Casbin treats careless policies, and how the gateway treats each of them.

If a first half fails after an upgrade, Casbin has changed: the cure may have become unnecessary, never wrong.
"""

from pathlib import Path
from typing import Any

import casbin
import pytest
from casbin.util import key_match, regex_match

from gateway.policy.casbin.enforcer import CasbinAuthoriser
from gateway.policy.casbin.lint import KnownNames, lint_policies
from gateway.policy.casbin.policy_files import MODEL_TEXT, read_policies
from gateway.policy.casbin.policy_index import build_role_graph, find_ancestors, is_object, matches_catalogue
from tests.policy.casbin.policy_samples import RANKS, policy_set, request

ALLOW = "role:a, *, tool:*, invoke, internal, allow"
QUESTION = (frozenset({"role:a"}), "eng", "tool:log", "invoke", "internal")
EFFECT = "some(where (p.eft == allow)) && !some(where (p.eft == deny))"


def stock(*rows: str, text: str = MODEL_TEXT, matched: Any = True) -> Any:
    """Unmodified Casbin, with matcher functions that always answer `matched`."""
    model = casbin.Model()
    model.load_model_from_text(text)
    enforcer = casbin.Enforcer(model)
    for name in ("holds", "names", "covers", "does", "within"):
        enforcer.add_function(name, lambda asked, given: matched)
    for row in rows:
        enforcer.add_policy(*row.split(", "))
    return enforcer


def codes(tmp_path: Path, policy: str) -> list[str]:
    (tmp_path / "model.conf").write_text(MODEL_TEXT)
    (tmp_path / "policy.csv").write_text(policy)
    policies, found = read_policies(tmp_path)
    return [one.code for one in (*found, *lint_policies(policies, KnownNames()))]


def test_row_of_five_columns_breaks_every_decision_but_is_refused_here(tmp_path: Path) -> None:
    short = ALLOW.removesuffix(", allow")

    with pytest.raises(RuntimeError, match="invalid policy size"):
        stock(ALLOW, short).enforce(*QUESTION)

    assert codes(tmp_path, f"p, {short}\n") == ["row-arity"]


def test_misspelt_effect_counts_as_nothing_but_is_refused_here(tmp_path: Path) -> None:
    misspelt = ALLOW.replace("allow", "dney")

    assert stock(ALLOW, misspelt).enforce(*QUESTION) is True

    assert codes(tmp_path, f"p, {ALLOW}\np, {misspelt}\n") == ["policy-effect"]


def test_unknown_section_is_dropped_but_refused_here(tmp_path: Path) -> None:
    file = tmp_path / "stock.csv"
    file.write_text(f"p, {ALLOW}\nq, {ALLOW.replace('allow', 'deny')}\n")
    (tmp_path / "stock.conf").write_text(MODEL_TEXT)

    assert casbin.Enforcer(str(tmp_path / "stock.conf"), str(file)).get_policy() == [ALLOW.split(", ")]
    file.unlink()

    assert codes(tmp_path, f"q, {ALLOW}\n") == ["unknown-section"]


def test_explanation_of_an_allow_is_not_the_first_row_but_is_here() -> None:
    rows = [ALLOW, ALLOW.replace("tool:*", "tool:log"), ALLOW.replace("internal", "partner")]

    allowed, explanation = stock(*rows).enforce_ex(*QUESTION)

    assert allowed is True
    assert explanation != rows[0].split(", ")
    decision = CasbinAuthoriser(policy_set(rows), ranks=RANKS).decide(request("role:a"))
    assert decision.row is not None
    assert decision.row.line == 1


def test_chain_of_ten_links_is_not_followed_but_refused_here() -> None:
    chain = [f"role:{number}, role:{number + 1}" for number in range(10)]
    enforcer = stock()
    for link in chain:
        enforcer.add_grouping_policy(*link.split(", "))

    followed = enforcer.get_role_manager().has_link

    assert followed("role:1", "role:10") is True
    assert followed("role:0", "role:10") is False
    policies = policy_set([], chain)
    assert "role:10" in find_ancestors(["role:0"], build_role_graph(policies.members))
    assert [one.code for one in lint_policies(policies, KnownNames())] == ["role-depth"]


def test_built_in_matchers_let_other_names_through_but_ours_do_not() -> None:
    assert regex_match("tool_read_all", "tool_read")
    assert key_match("github/../admin", "github/*")

    assert not matches_catalogue("tool_read_all", "tool_read")
    assert not is_object("tool:github/../admin")


def test_built_in_matchers_are_not_there_to_be_used() -> None:
    authoriser = CasbinAuthoriser(policy_set([ALLOW]), ranks=RANKS)

    assert set(authoriser._enforcer.fm.get_functions()) == {"holds", "names", "covers", "does", "within"}


@pytest.mark.parametrize("answer", [None, 1])
def test_matcher_function_without_a_boolean_breaks_decisions(answer: Any) -> None:
    with pytest.raises(RuntimeError, match="matcher result should be bool"):
        stock(ALLOW, matched=answer).enforce(*QUESTION)


def test_effect_without_an_allow_permits_everything_on_an_empty_policy() -> None:
    weakened = MODEL_TEXT.replace(EFFECT, "!some(where (p.eft == deny))")

    assert stock(text=weakened, matched=False).enforce(*QUESTION) is True

    assert stock(matched=False).enforce(*QUESTION) is False
    assert not CasbinAuthoriser(policy_set(), ranks=RANKS).decide(request("role:a")).allowed


def test_saving_is_on_by_default_and_off_here() -> None:
    assert stock().auto_save is True

    assert CasbinAuthoriser(policy_set(), ranks=RANKS)._enforcer.auto_save is False


def test_names_asked_about_are_remembered_by_role_managers_but_not_here() -> None:
    manager = stock().get_role_manager()
    manager.has_link("user:nobody", "role:a")
    authoriser = CasbinAuthoriser(policy_set([ALLOW], ["user:ana, role:a"]), ranks=RANKS)

    authoriser.decide(request("user:nobody"))

    assert authoriser._enforcer.rm_map == {}
    assert set(authoriser._members) == {"user:ana"}


def test_rows_of_one_decision_are_not_seen_by_the_next() -> None:
    authoriser = CasbinAuthoriser(policy_set([ALLOW]), ranks=RANKS)

    authoriser.decide(request("role:a"))

    assert authoriser._enforcer.get_policy() == []
