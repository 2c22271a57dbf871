"""Rows that end: the comment that states the end, and decisions that follow the clock."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.errors import ProgramError
from gateway.policy.authoriser import TimedAuthoriser
from gateway.policy.casbin.enforcer import CasbinAuthoriser
from gateway.policy.casbin.lint import KnownNames, find_ended_rows, lint_policies
from gateway.policy.casbin.period_authoriser import PeriodAuthoriser, build_authoriser
from gateway.policy.casbin.policy_files import PolicySet, read_policies
from tests.policy.casbin.policy_samples import RANKS, request
from tests.policy.casbin.test_policy_files import ROW, folder, problems

MEMBER = "g, user:ana, role:a"
END = datetime(2027, 2, 1, tzinfo=UTC)


class Clock:
    def __init__(self, at: datetime) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return self.at


def read(path: Path) -> PolicySet:
    policies, found = read_policies(path)
    assert [each for each in found if each.is_error] == []
    return policies


def ended_by(moment: str, row: str = ROW) -> str:
    return f"# until {moment} INC-42: {row}\n{row}\n"


# The comment


@pytest.mark.parametrize(
    ("moment", "until"),
    [
        ("2027-01-31", END),
        ("2027-01-31T18:00Z", datetime(2027, 1, 31, 18, tzinfo=UTC)),
        ("2027-01-31T18:00:30Z", datetime(2027, 1, 31, 18, 0, 30, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize("row", [ROW, MEMBER])
def test_comment_above_a_row_ends_it(moment: str, until: datetime, row: str, tmp_path: Path) -> None:
    policies = read(folder(tmp_path, ended_by(moment, row)))

    [found] = policies.ending
    assert found.end is not None
    assert (found.end.until, found.end.ticket, found.end.position.line, found.position.line) == (until, "INC-42", 1, 2)


def test_row_without_a_comment_has_no_end(tmp_path: Path) -> None:
    policies = read(folder(tmp_path, f"# who may call\n{ROW}\n# {ROW}\n{MEMBER}"))

    assert policies.ending == ()
    assert policies.in_force(datetime.max.replace(tzinfo=UTC)) == policies


DETACHED = {
    "a blank line between": f"# until 2027-01-31 INC-42: {ROW}\n\n{ROW}",
    "a comment between": f"# until 2027-01-31 INC-42: {ROW}\n# why\n{ROW}",
    "an unreadable line between": f"# until 2027-01-31 INC-42: {ROW}\n\u200b\n{ROW}",
    "another row below": f"# until 2027-01-31 INC-42: {ROW}\n{MEMBER}\n{ROW}",
    "an edited row": f"# until 2027-01-31 INC-42: {ROW}\n{ROW.replace('tool:*', '*')}",
    "sorted lines": "\n".join(sorted((ended_by("2027-01-31") + ended_by("2027-01-31", MEMBER)).splitlines())),
    "at the end of the file": f"{ROW}\n# until 2027-01-31 INC-42: {ROW}",
    "the group of an object": ended_by("2027-01-31", "g2, tool:a, class:b"),
    "no ticket": f"# until 2027-01-31: {ROW}\n{ROW}",
    "no row": f"# until 2027-01-31 INC-42\n{ROW}",
    "no day": f"# until tomorrow INC-42: {ROW}\n{ROW}",
    "no such day": ended_by("2027-02-30"),
    "no such hour": ended_by("2027-01-31T25:00Z"),
    "local time": ended_by("2027-01-31T18:00"),
    "another offset": ended_by("2027-01-31T18:00+01:00"),
    "the last day of the calendar": ended_by("9999-12-31"),
    "other digits": ended_by("２０２７-01-31"),
    "an odd ticket": f"# until 2027-01-31 <b>: {ROW}\n{ROW}",
    "a long ticket": f"# until 2027-01-31 {'x' * 65}: {ROW}\n{ROW}",
    "capitals": f"# Until 2027-01-31 INC-42: {ROW}\n{ROW}",
    "a misspelt word": f"# untl 2027-01-31 INC-42: {ROW}\n{ROW}",
    "prose": f"# until the move is over\n{ROW}",
    "a row twice with two ends": ended_by("2027-01-31") + ROW,
}


@pytest.mark.parametrize("name", DETACHED)
def test_comment_that_ends_no_row_is_an_error(name: str, tmp_path: Path) -> None:
    policies, found = read_policies(folder(tmp_path, DETACHED[name]))

    codes = {each.code for each in (*found, *lint_policies(policies, KnownNames())) if each.is_error}
    assert "row-end" in codes


def test_row_of_bad_shape_below_a_comment_is_reported_once(tmp_path: Path) -> None:
    assert problems(folder(tmp_path, "# until 2027-01-31 INC-42: p, role:a\np, role:a")) == [
        "policy.csv:2:4: row-arity"
    ]


def test_end_of_a_deny_is_announced(tmp_path: Path) -> None:
    deny = ROW.replace("allow", "deny")
    policies = read(folder(tmp_path, ended_by("2027-01-31", deny) + ended_by("2027-01-31", MEMBER)))

    def warnings(at: datetime) -> list[tuple[str, str]]:
        return [(each.code, each.message) for each in find_ended_rows(policies, at)]

    words = "until 2027-02-01T00:00:00Z (INC-42)"
    opens = "; what it denied is decided by other rows"
    assert warnings(END - timedelta(days=15)) == []
    assert warnings(END - timedelta(days=14)) == [
        ("ending-row", f"the row is in force {words}{opens} then"),
        ("ending-row", f"the row is in force {words}"),
    ]
    assert warnings(END) == [
        ("ended-row", f"the row was in force {words}{opens}"),
        ("ended-row", f"the row was in force {words}"),
    ]


# Decisions


def decide(authoriser: object) -> bool:
    assert isinstance(authoriser, PeriodAuthoriser | CasbinAuthoriser)
    return authoriser.decide(request("user:ana")).allowed


def test_policies_without_ends_are_decided_without_a_clock(tmp_path: Path) -> None:
    def fail() -> datetime:
        raise AssertionError("the clock was read")

    authoriser = build_authoriser(read(folder(tmp_path, f"{ROW}\n{MEMBER}")), ranks=RANKS, clock=fail)

    assert isinstance(authoriser, CasbinAuthoriser)
    assert decide(authoriser)


def test_rows_with_an_end_are_not_decided_without_a_clock(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="rows that end"):
        CasbinAuthoriser(read(folder(tmp_path, ended_by("2027-01-31"))), ranks=RANKS)


@pytest.mark.parametrize(
    "rows", [ended_by("2027-01-31") + MEMBER, ended_by("2027-01-31", MEMBER) + ROW], ids=["permission", "membership"]
)
def test_cached_decision_ends_with_the_row(rows: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(END - timedelta(microseconds=1))
    authoriser = build_authoriser(read(folder(tmp_path, rows)), ranks=RANKS, clock=clock)

    before = [authoriser.decide(request("user:ana")) for _ in range(2)]
    clock.at = END
    after = [authoriser.decide(request("user:ana")) for _ in range(2)]
    clock.at = END - timedelta(days=300)
    set_back = authoriser.decide(request("user:ana"))

    assert [(each.allowed, each.is_cached) for each in before] == [(True, False), (True, True)]
    assert [(each.allowed, each.is_cached) for each in after] == [(False, False), (False, True)]
    assert not set_back.allowed
    assert [each.getMessage().partition(" has ended: ")[2] for each in caplog.records] == [
        "it was in force until 2027-02-01T00:00:00Z (INC-42)"
    ]


def test_roles_end_with_the_membership(tmp_path: Path) -> None:
    clock = Clock(END - timedelta(seconds=1))
    authoriser = build_authoriser(
        read(folder(tmp_path, ended_by("2027-01-31", MEMBER) + ROW)), ranks=RANKS, clock=clock
    )
    ana = frozenset({"user:ana"})

    before = authoriser.roles_of(ana)
    clock.at = END

    assert (set(before), set(authoriser.roles_of(ana))) == ({"user:ana", "role:a"}, {"user:ana"})


def test_deny_that_ends_leaves_the_decision_to_other_rows(tmp_path: Path) -> None:
    clock = Clock(END - timedelta(seconds=1))
    rows = f"{ROW}\n{MEMBER}\n" + ended_by("2027-01-31", ROW.replace("allow", "deny"))
    authoriser = build_authoriser(read(folder(tmp_path, rows)), ranks=RANKS, clock=clock)

    before = decide(authoriser)
    clock.at = END

    assert (before, decide(authoriser)) == (False, True)


def test_unreadable_clock_denies(tmp_path: Path) -> None:
    clock = Clock(END - timedelta(seconds=1))
    authoriser = build_authoriser(
        read(folder(tmp_path, ended_by("2027-01-31") + MEMBER)), ranks=RANKS, clock=lambda: clock()
    )
    assert decide(authoriser)

    clock.at = None  # type: ignore[assignment] # no moment can be compared with it
    decision = authoriser.decide(request("user:ana"))

    assert (decision.allowed, decision.is_unanswered) == (False, True)
    assert decision.reason == "authorisation failed (TypeError)"


def test_decisions_of_any_moment_can_be_asked(tmp_path: Path) -> None:
    days = [f"2027-01-{day:02}" for day in range(1, 21)]
    rows = "".join(ended_by(day, f"g, user:ana, role:r{day[-2:]}") for day in days)
    clock = Clock(END)
    authoriser = build_authoriser(read(folder(tmp_path, rows)), ranks=RANKS, clock=clock)
    assert isinstance(authoriser, TimedAuthoriser)
    ana = frozenset({"user:ana"})

    for _ in range(2):
        for day in (1, 1, 20, 7, 13, 2, 19, 18, 3, 4, 5, 6):
            moment = datetime(2027, 1, day, 23, 59, 59, tzinfo=UTC)
            expected = {"user:ana", *(f"role:r{number:02}" for number in range(day, 21))}
            assert authoriser.at(moment).roles_of(ana) == expected

    assert authoriser.roles_of(ana) == ana


def test_clock_that_races_ends_a_row_once(tmp_path: Path) -> None:
    """Another thread may have moved on while this one waited."""
    policies = read(folder(tmp_path, ended_by("2027-01-31") + MEMBER))
    moments = iter([END - timedelta(days=1), END, END - timedelta(days=1), END, END])
    authoriser = build_authoriser(policies, ranks=RANKS, clock=lambda: next(moments))

    decisions = [authoriser.decide(request("user:ana")) for _ in range(2)]

    assert [(each.allowed, each.is_unanswered) for each in decisions] == [(True, False), (False, False)]
