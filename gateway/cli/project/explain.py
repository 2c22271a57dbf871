"""`gateway explain`: document a field or the code of a problem, or explain the decision on a call step by step."""

import json
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from typer.core import TyperGroup

from gateway.cli.call_input import parse_arguments, parse_caller
from gateway.cli.options import (
    DEFAULT_FOLDER,
    EnvironmentOption,
    FolderArgument,
    OutputOption,
    PoliciesOption,
    RolesOption,
)
from gateway.cli.output import fail, print_document, print_line, print_note, stdout
from gateway.cli.project.end_notes import add_stored_grants, list_time_notes
from gateway.cli.project_loader import find_project, load_with_environ, project_secrets, require_valid
from gateway.config import CODES, UnknownField, escape_invisible, explain_schema_field
from gateway.model import Principal
from gateway.policy import (
    STEPS,
    Access,
    AccessAnswer,
    AccessQuestion,
    ArgumentsCheck,
    ConditionScope,
    GateRule,
    RuleVerdict,
    TurnState,
    find_deciding_part,
    fingerprint_of_call,
)
from gateway.registries import DeclaredTool, Position, Query, Snapshot, in_effect_order, suggest_name
from gateway.review import find_false_condition

NOT_ASKED: Final = "not asked"
_COLOURS: Final = {"allow": "green", "hold": "yellow", "deny": "red"}
_WIDEST: Final = 80


@dataclass(frozen=True, slots=True)
class ExplanationLine:
    """One line of an explanation: a step or a gate rule, its answer, and the reason."""

    name: str
    word: str
    reason: str = ""
    position: Position | None = None
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The file and line, unless the reason contains them."""
        place = f"{self.position.file}:{self.position.line}" if self.position else ""
        return "" if place in self.reason else place


def explain_steps(answer: AccessAnswer) -> list[ExplanationLine]:
    """Return every step in order, including those that were not asked."""
    asked = [ExplanationLine(step.name, step.decision, step.reason, step.position) for step in answer.steps]
    if asked and asked[-1].name == "gates" and answer.decision == "allow":  # the position is at the policy step
        asked[-1] = ExplanationLine("gates", "allow", answer.steps[-1].reason)
    return asked + [ExplanationLine(name, NOT_ASKED) for name in STEPS[len(asked) :]]


def explain_rules(access: Access, call: AccessQuestion, answer: AccessAnswer) -> list[ExplanationLine]:
    """Return every gate rule about the tool with its answer, or why it has none. Empty if gates were not asked."""
    tool = access.find_requested(call)
    if answer.outcome is None or tool is None:
        return []
    verdicts = {verdict.rule.name: verdict for verdict in answer.outcome.verdicts}
    disabled = [rule for rule in access.snapshot.gates.values() if rule.mode == "disabled"]
    about = [rule for rule in disabled if rule.matches(tool.to_governed, call.catalogue)]
    about += access.find_rules(tool, call.catalogue)
    return [
        _explain_rule(rule, verdicts.get(rule.name), answer, tool) for rule in sorted(about, key=lambda rule: rule.name)
    ]


def describe_effects(access: Access, call: AccessQuestion) -> str:
    """Return the effect flags of the tool and their origin; empty if there is no such tool."""
    tool = access.find_requested(call)
    if tool is None:
        return ""
    if isinstance(tool, Query):
        return f"none: it reads what {tool.maker.name} yielded"
    trust = tool.trust
    flags = ", ".join(in_effect_order(trust.flags)) or "no flags"
    claims = f"; its server claims {', '.join(in_effect_order(trust.claimed))}" if trust.claimed else ""
    by = {"declared": "declared", "implied": "implied by the method", "unknown": "unknown, which counts as the worst"}
    return f"{by[trust.effects]}: {flags}{claims}"


def print_explanation(
    console: Console, call: AccessQuestion, answer: AccessAnswer, rules: list[ExplanationLine], effects: str
) -> None:
    """Print the decision, the effects of the tool, each step, and each gate rule."""
    decision, step = answer.decision, answer.steps[-1]
    who = f"{call.principal.subject} calls {call.tool} in {call.catalogue}"
    what = f"{answer.because.kind} {answer.because.name}" if answer.because else f"the {step.name}"
    print_line(console, (decision, f"bold {_COLOURS[decision]}"), escape_invisible(f": {who}; decided by {what}"))
    if effects:
        print_line(console, escape_invisible(f"effects: {effects}"))
    print_line(console)
    _print_lines(console, explain_steps(answer))
    if rules:
        print_line(console)
        print_line(console, ("gate rules about the tool", "bold"))
        _print_lines(console, rules)


def explanation_to_json(
    call: AccessQuestion,
    answer: AccessAnswer,
    rules: list[ExplanationLine],
    effects: str,
    notes: list[str],
) -> str:
    document = {
        "decision": answer.decision,
        "because": {answer.because.kind: answer.because.name} if answer.because else None,
        "call": {
            "tool": call.tool,
            "catalogue": call.catalogue,
            "subject": call.principal.subject,
            "roles": sorted(call.principal.roles),
            "tenant": call.principal.tenant,
            "at": call.at.isoformat(),
        },
        "effects": effects,
        "steps": [_to_object(line) for line in explain_steps(answer)],
        "gateRules": [_to_object(line) for line in rules],
        "notes": notes,
    }
    return json.dumps(document, indent=2) + "\n"


def _explain_rule(
    rule: GateRule, verdict: RuleVerdict | None, answer: AccessAnswer, tool: DeclaredTool | Query
) -> ExplanationLine:
    assumed = _explain_match(rule, tool)
    if rule.mode == "disabled":
        return ExplanationLine(rule.name, "disabled", "", rule.position, assumed)
    if verdict is None:
        return ExplanationLine(
            rule.name, "not about it", find_false_condition(rule, answer) or "", rule.position, assumed
        )
    word = verdict.judgement.decision
    return ExplanationLine(
        rule.name,
        word if verdict.is_enforced else f"would {word}",
        verdict.judgement.reason,
        rule.position,
        (*assumed, *(_notes(rule, verdict, answer.scope) if answer.scope else ())),
    )


def _explain_match(rule: GateRule, tool: DeclaredTool | Query) -> tuple[str, ...]:
    """Return a note if the rule matches the tool only because its effects are unknown."""
    if not rule.match.flags or not tool.trust.known_flags.isdisjoint(rule.match.flags):
        return ()
    flags = in_effect_order(tool.trust.assumed.intersection(rule.match.flags))
    return (f"matches because the effects are unknown, which counts as {', '.join(flags)}",)


def _notes(rule: GateRule, verdict: RuleVerdict, scope: ConditionScope) -> Iterator[str]:
    """Yield the part of a requirement that is not met, and why the rule applies to the call."""
    if isinstance(rule.check, ArgumentsCheck) and verdict.judgement.decision != "allow":
        yield str(find_deciding_part(rule.check.require, scope))
    if rule.when is not None:
        yield f"asked because {find_deciding_part(rule.when, scope)}"


def _print_lines(console: Console, lines: list[ExplanationLine]) -> None:
    names = max(len(line.name) for line in lines)
    words = max(len(line.word) for line in lines)
    reasons = min(_WIDEST, max(cell_len(escape_invisible(line.reason)) for line in lines))
    for line in lines:
        reason = escape_invisible(line.reason)
        gap = " " * max(0, reasons - cell_len(reason)) if line.place else ""
        style = _COLOURS.get(line.word.removeprefix("would "), "dim")
        after = f"  {reason}{gap}  {escape_invisible(line.place)}".rstrip()
        if after:
            print_line(console, f"  {line.name:{names}}  ", (f"{line.word:{words}}", style), after)
        else:
            print_line(console, f"  {line.name:{names}}  ", (line.word, style))
        for words_below in line.notes:
            print_line(console, " " * (names + words + 6), (escape_invisible(words_below), "dim"))


def _to_object(line: ExplanationLine) -> dict[str, Any]:
    position = line.position
    return {
        "name": line.name,
        "answer": line.word,
        "reason": line.reason,
        "file": position.file if position else None,
        "line": position.line if position else None,
        "notes": list(line.notes),
    }


_FIELD: Final = "field"


class _FieldGroup(TyperGroup):
    """Group that reads a word which is no subcommand as a field or a code: `gateway explain tool.spec`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_named else [_FIELD, *args])


app = typer.Typer(
    cls=_FieldGroup,
    add_completion=False,
    no_args_is_help=True,
    subcommand_metavar="FIELD | CODE | call TOOL ...",
    help="Document a field of a YAML kind or the code of a problem, or explain the decision on a call.",
    epilog="gateway explain tool.spec.backend --recursive\n\n"
    "gateway explain unknown-field\n\n"
    "gateway explain call ticket_create --as user:ana --in support --with subject=Printer",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # locals may hold arguments of calls
)


@app.command(_FIELD)
def explain_field(
    field: Annotated[
        str,
        typer.Argument(help="A kind, a path into one (tool.spec.backend), or the code of a problem.", metavar="FIELD"),
    ],
    recursive: Annotated[bool, typer.Option("--recursive", help="Include everything below it.")] = False,
) -> None:
    """Document a field of a YAML kind (what it is for, takes and defaults to), or the code of a problem."""
    if field in CODES:
        print_document(f"{field}\n\n  {CODES[field]}")
        return
    try:
        print_document(explain_schema_field(field, recursive=recursive).rstrip("\n"))
    except UnknownField as error:
        is_code = "-" in field and "." not in field
        fail(error.message, (suggest_name(field, CODES) if is_code else None) or error.help)


@app.command("call")
def explain_call(
    tool: Annotated[str, typer.Argument(help="The tool, by its name in the catalogue.", metavar="TOOL")],
    folder: FolderArgument = DEFAULT_FOLDER,
    *,
    subject: Annotated[str, typer.Option("--as", metavar="SUBJECT", help="Who calls: user:ana, agent:bot.")],
    roles: RolesOption = None,
    tenant: Annotated[str | None, typer.Option(metavar="TENANT", help="The tenant of the caller.")] = None,
    of: Annotated[
        str | None, typer.Option(metavar="TOOL", help="The tool whose result a query tool (artifact_...) reads.")
    ] = None,
    catalogue: Annotated[
        str | None,
        typer.Option(
            "--in", metavar="CATALOGUE", help="The catalogue; without it, the only one with the tool, or the default."
        ),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="KEY=VALUE", help="An argument; lists and objects are written as JSON."),
    ] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object, or - to read standard input.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="When: 2026-11-16T10:00:00Z; without it, now.")
    ] = None,
    saw: Annotated[
        list[str] | None, typer.Option(metavar="FLAG", help="A flag of a tool that was called earlier in the turn.")
    ] = None,
    read: Annotated[
        list[str] | None, typer.Option(metavar="CLASS", help="An artifact class that was read earlier in the turn.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL", help="A tool that was called earlier in the turn, with its taint."),
    ] = None,
    repeated: Annotated[
        int,
        typer.Option(metavar="TIMES", min=0, max=10_000, help="How often the same call was made before in the turn."),
    ] = 0,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    output: OutputOption = "text",
) -> None:
    """Explain the decision on a call: each step in order, then every gate rule about the tool.

    The tool is not called and no quota is used. Exit code 0 for every decision, 1 if the project has errors.
    """
    moment = _parse_moment(at)
    principal = _principal(subject, roles, tenant)
    project = find_project(folder, policies)
    found = require_valid(
        load_with_environ(project, environment=environment, today=moment.astimezone(UTC).date()), project
    )
    assert found.access is not None, "a valid project has one"  # noqa: S101 - `require_valid` checked it
    access, unread = add_stored_grants(found, found.access, project_secrets(folder, policies), moment)
    place = choose_catalogue(access.snapshot, tool, catalogue)
    asked = access.find_requested(AccessQuestion(principal, place, tool, moment, of=of))
    if asked is None and (makers := access.snapshot.queries_in(place, tool)):
        fail(f"{tool} reads the result of a tool", f"name that tool: --of {' | --of '.join(sorted(makers))}")
    arguments = parse_arguments(asked, pairs or [], sys.stdin.read() if args == "-" else args)
    memory = TurnState()
    memory.flags.update(_require_known("flag", access.snapshot.flags, saw or []))
    memory.classes.update(_require_known("artifact class", access.snapshot.artifacts, read or []))
    _record_calls(memory, access, place, after or [], moment)
    call = AccessQuestion(principal, place, tool, moment, arguments, memory, of=of)
    _repeat(memory, call, repeated)
    answer = access.decide_call(call)
    rules, effects = explain_rules(access, call, answer), describe_effects(access, call)
    named = None if asked is None else asked.object
    notes = [*([unread] if unread else []), *list_time_notes(found, access, answer, principal, moment, named)]
    if output == "json":
        print_document(explanation_to_json(call, answer, rules, effects, notes), is_json=True)
    else:
        print_explanation(stdout(), call, answer, rules, effects)
        for note in notes:
            print_line(stdout(), ("note: ", "cyan"), escape_invisible(note))


def _parse_moment(text: str | None) -> datetime:
    try:
        moment = datetime.now(UTC) if text is None else datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment.astimezone(UTC)  # fails for the first and the last day of the calendar
            return moment
    except (ValueError, OverflowError):
        pass
    return fail(f"{text!r} is not a moment", "write it with its time zone: 2026-11-16T10:00:00Z")


def _principal(subject: str, roles: list[str] | None, tenant: str | None) -> Principal:
    named = parse_caller(subject, roles)
    if named is None or subject.startswith("role:"):
        fail(f"{subject!r} calls nothing", "name a caller who has the role: --as user:ana --role role:clerk")
    return replace(named, tenant=tenant)


def choose_catalogue(snapshot: Snapshot, tool: str, wanted: str | None) -> str:
    """Return the catalogue that was named, the only one with the tool, or the default."""
    candidates = [name for name in snapshot.catalogues if _has(snapshot, name, tool)]
    if wanted is not None and wanted not in snapshot.catalogues:
        known = ", ".join(sorted(snapshot.catalogues))
        fail(f"there is no catalogue {wanted!r}", suggest_name(wanted, snapshot.catalogues) or f"there are {known}")
    if not candidates:
        _fail_unknown_tool(snapshot, tool)
    if wanted is not None:
        if wanted not in candidates:
            print_note(f"{tool} is in {', '.join(sorted(candidates))}")
        return wanted
    if len(candidates) == 1:
        return candidates[0]
    if snapshot.default_catalogue is not None:
        return snapshot.default_catalogue
    return fail(f"{tool} is in {', '.join(sorted(candidates))}", "choose one: --in CATALOGUE")


def _has(snapshot: Snapshot, catalogue: str, tool: str) -> bool:
    return tool in snapshot.catalogues[catalogue].tools or bool(snapshot.queries_in(catalogue, tool))


def _fail_unknown_tool(snapshot: Snapshot, tool: str) -> None:
    advertised = {name for each in snapshot.catalogues.values() for name in each.tools} | snapshot.query_names
    under = [name for each in snapshot.catalogues.values() for name, identity in each.tools.items() if identity == tool]
    if under:
        fail(f"no catalogue has a tool named {tool!r}", f"its name is {', '.join(sorted(set(under)))}")
    if tool in snapshot.tools:
        fail(f"the tool {tool!r} is in no catalogue", "add it to one, so that it can be called")
    fail(f"there is no tool {tool!r}", suggest_name(tool, advertised))


def _require_known(what: str, known: Collection[str], names: list[str]) -> list[str]:
    for name in names:
        if name not in known:
            fail(f"there is no {what} {name!r}", suggest_name(name, known) or f"there are {', '.join(sorted(known))}")
    return names


def _record_calls(memory: TurnState, access: Access, catalogue: str, tools: list[str], at: datetime) -> None:
    advertised = access.snapshot.catalogues[catalogue].tools
    for name in _require_known(f"tool in {catalogue}", advertised, tools):
        declared = access.snapshot.tools[advertised[name]]
        memory.reserve_call("")  # its arguments are unknown
        memory.record_call(access.taint_of_tool(declared), "allow", at=at)


def _repeat(memory: TurnState, call: AccessQuestion, times: int) -> None:
    for _ in range(times):
        memory.reserve_call(fingerprint_of_call(call))
