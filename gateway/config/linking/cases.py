"""Policy tests as cases, and who the identity providers can let in."""

from collections.abc import Collection, Iterator

from gateway.config.linking.entries import Entries, Entry
from gateway.config.specs.gateway import (
    IdentityProviderDocument,
    JwtProviderSpec,
    NoneProviderSpec,
    TokenProviderSpec,
)
from gateway.config.specs.policy_tests import Because as BecauseSpec
from gateway.config.specs.policy_tests import Case, PolicyTestDocument
from gateway.governance.cases import Because, EarlierCall, PolicyCase
from gateway.governance.diagnostics import Diagnostic, did_you_mean
from gateway.governance.principals import Principal


def link_cases(entries: Entries) -> list[PolicyCase]:
    return [
        _case(entry, index, case)
        for entry in entries.of(PolicyTestDocument).values()
        for index, case in enumerate(entry.document.spec.cases)
    ]


def unknown_calls(entries: Entries, *, advertised: Collection[str], prefixes: Collection[str]) -> Iterator[Diagnostic]:
    """Calls of tools that no document declares and no catalogue advertises, and that no upstream could bring.

    `prefixes` begin the names of tools that are not known yet.
    """
    known = entries.names.get("Tool", frozenset()) | set(advertised)
    for entry in entries.of(PolicyTestDocument).values():
        for index, case in enumerate(entry.document.spec.cases):
            for name, place in _called(case):
                if name not in known and not name.startswith(tuple(prefixes)):
                    message, path = f"there is no Tool {name!r}", ("spec", "cases", index, *place)
                    yield entry.problem("unknown-reference", message, path, help=did_you_mean(name, known))


def known_callers(entries: Entries) -> tuple[frozenset[str], frozenset[str]]:
    """Every role that an identity provider can give, and every subject that one names."""
    roles: set[str] = set()
    subjects: set[str] = set()
    for entry in entries.of(IdentityProviderDocument).values():
        match entry.document.spec:
            case JwtProviderSpec(roles=claim):
                roles |= set(claim.map.values()) if claim else set()
            case TokenProviderSpec(tokens=tokens):
                subjects |= {token.subject for token in tokens}
                roles |= {role for token in tokens for role in token.roles}
            case NoneProviderSpec(subject=subject, roles=given):
                subjects.add(subject)
                roles |= set(given)
    return frozenset(roles), frozenset(subjects)


def expired_tokens(entries: Entries) -> Iterator[Diagnostic]:
    for entry in entries.of(IdentityProviderDocument).values():
        spec = entry.document.spec
        for index, token in enumerate(spec.tokens) if isinstance(spec, TokenProviderSpec) else ():
            if token.expires < entries.today:
                message = f"the token's last day was {token.expires}"
                place = ("spec", "tokens", index, "expires")
                yield entry.problem("token-expired", message, place, help="remove or renew it", severity="warning")


def _case(entry: Entry[PolicyTestDocument], index: int, case: Case) -> PolicyCase:
    given, caller = entry.document.spec.given, case.as_
    catalogue, at = case.in_ or (given and given.catalogue), case.at or (given and given.at)
    expected = case.expect.decision or frozenset(case.expect.tools or ())
    assert catalogue, "a case without a catalogue has the wrong shape"  # noqa: S101 - told where shapes are checked
    assert at, "a case without a moment has the wrong shape"  # noqa: S101 - told where shapes are checked
    return PolicyCase(
        entry.name,
        case.name,
        Principal(caller.subject, frozenset(caller.roles), caller.tenant),
        catalogue,
        at,
        entry.at("spec", "cases", index, "name"),
        expected,
        tool=case.call,
        args=case.with_ or {},
        saw=frozenset(case.turn.saw) if case.turn else frozenset(),
        read=frozenset(case.turn.read) if case.turn else frozenset(),
        calls=_earlier(case),
        because=_because(case.expect.because),
        of=case.of,
    )


def _called(case: Case) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    """Every tool that a case names, and where."""
    if case.call is not None:
        yield case.call, ("call",)
    if case.of is not None:
        yield case.of, ("of",)
    for index, earlier in enumerate(case.turn.calls if case.turn else ()):
        yield earlier.tool, ("turn", "calls", index, "tool")


def _earlier(case: Case) -> tuple[EarlierCall, ...]:
    return tuple(
        EarlierCall(each.tool, each.with_ or {}, each.times, each.ago, each.bytes or 0)
        for each in (case.turn.calls if case.turn else ())
    )


def _because(spec: BecauseSpec | None) -> Because | None:
    if spec is None:
        return None
    if spec.policy is not None:
        return Because("policy", spec.policy)
    if spec.class_ is not None:
        return Because("class", spec.class_)
    return Because("gate", spec.gate) if spec.gate is not None else Because("tier", spec.tier or "")
