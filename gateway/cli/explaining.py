"""`gateway explain`: what a field or the code of a problem means, and what becomes of a call."""

import sys
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import typer
from typer.core import TyperGroup

from gateway.access import Access, Call, fingerprint_of_call
from gateway.cli.callers import Roles, caller
from gateway.cli.console import fail, note, out, print_document
from gateway.cli.explanations import as_json, effects_told, print_explanation, rules_told
from gateway.cli.project import DEFAULT_FOLDER, Environment, Folder, Policies, assembled, project_at, sound
from gateway.cli.typed_arguments import typed_arguments
from gateway.config.codes import CODES
from gateway.config.explain import UnknownField, explain
from gateway.governance.diagnostics import did_you_mean
from gateway.governance.memory import TurnMemory
from gateway.governance.principals import Principal
from gateway.snapshot import Snapshot

_FIELD: Final = "field"


class _FieldUnlessNamed(TyperGroup):
    """What is not the name of a subcommand is a field or a code: `gateway explain tool.spec`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_named else [_FIELD, *args])


explaining = typer.Typer(
    cls=_FieldUnlessNamed,
    add_completion=False,
    no_args_is_help=True,
    subcommand_metavar="FIELD | CODE | call TOOL ...",
    help="Document a field of a YAML kind or the code of a problem, or tell what becomes of a call.",
    epilog="gateway explain tool.spec.backend --recursive\n\n"
    "gateway explain unknown-field\n\n"
    "gateway explain call ticket_create --as user:ana --in support --with subject=Printer",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # locals may hold arguments of calls
)


@explaining.command(_FIELD)
def explain_field(
    field: Annotated[
        str,
        typer.Argument(help="A kind, a path into one (tool.spec.backend), or the code of a problem.", metavar="FIELD"),
    ],
    recursive: Annotated[bool, typer.Option("--recursive", help="Everything below it, too.")] = False,
) -> None:
    """Document a field of a YAML kind (what it is for, takes and defaults to), or the code of a problem."""
    if field in CODES:
        print_document(f"{field}\n\n  {CODES[field]}")
        return
    try:
        print_document(explain(field, recursive=recursive).rstrip("\n"))
    except UnknownField as error:
        is_code = "-" in field and "." not in field
        fail(error.message, (did_you_mean(field, CODES) if is_code else None) or error.help)


@explaining.command("call")
def explain_call(
    tool: Annotated[str, typer.Argument(help="The tool, by the name that the catalogue gives it.", metavar="TOOL")],
    folder: Folder = DEFAULT_FOLDER,
    *,
    subject: Annotated[str, typer.Option("--as", metavar="SUBJECT", help="Who calls: user:ana, agent:bot.")],
    roles: Roles = None,
    tenant: Annotated[str | None, typer.Option(metavar="TENANT", help="The tenant that the caller belongs to.")] = None,
    of: Annotated[
        str | None, typer.Option(metavar="TOOL", help="The tool whose result a query tool (artifact_...) reads.")
    ] = None,
    catalogue: Annotated[
        str | None,
        typer.Option("--in", metavar="CATALOGUE", help="Through which catalogue; the only one, or the default."),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="KEY=VALUE", help="An argument; lists and objects are written as JSON."),
    ] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments as a JSON object, or - to read standard input.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="MOMENT", help="When: 2026-11-16T10:00:00Z; now, if left out.")
    ] = None,
    saw: Annotated[
        list[str] | None, typer.Option(metavar="FLAG", help="A flag of a tool that was called earlier in the turn.")
    ] = None,
    read: Annotated[
        list[str] | None, typer.Option(metavar="CLASS", help="An artifact class that was read earlier in the turn.")
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL", help="A tool that was called earlier in the turn; with all that it brings."),
    ] = None,
    repeated: Annotated[
        int, typer.Option(metavar="TIMES", min=0, max=10_000, help="How often this very call was made in the turn.")
    ] = 0,
    policies: Policies = None,
    environment: Environment = None,
    output: Annotated[Literal["text", "json"], typer.Option(help="For people, or for a program.")] = "text",
) -> None:
    """Tell what becomes of a call and why: each step in its order, then every gate rule about the tool.

    Nothing is called and nothing is counted. Exit code 0 whatever the decision, 1 if the project has errors.
    """
    moment = _moment(at)
    principal = _principal(subject, roles, tenant)
    project = project_at(folder, policies)
    found = sound(assembled(project, environment=environment, today=moment.astimezone(UTC).date()), project)
    assert found.access is not None, "only sound projects are asked"  # noqa: S101 - `sound` has seen to it
    access: Access = found.access
    place = catalogue_for(access.snapshot, tool, catalogue)
    asked = access.requested(Call(principal, place, tool, moment, of=of))
    if asked is None and (makers := access.snapshot.queries_in(place, tool)):
        fail(f"{tool} reads what a tool yields", f"say which one: --of {' | --of '.join(sorted(makers))}")
    arguments = typed_arguments(asked, pairs or [], sys.stdin.read() if args == "-" else args)
    memory = TurnMemory()
    memory.flags.update(_known("flag", access.snapshot.flags, saw or []))
    memory.classes.update(_known("artifact class", access.snapshot.artifacts, read or []))
    _remember(memory, access, place, after or [], moment)
    call = Call(principal, place, tool, moment, arguments, memory, of=of)
    _repeat(memory, call, repeated)
    answer = access.call(call)
    rules, effects = rules_told(access, call, answer), effects_told(access, call)
    if output == "json":
        print_document(as_json(call, answer, rules, effects), is_json=True)
    else:
        print_explanation(out(), call, answer, rules, effects)


def _moment(text: str | None) -> datetime:
    try:
        moment = datetime.now(UTC) if text is None else datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            moment.astimezone(UTC)  # the first and the last day of the calendar have no moment elsewhere
            return moment
    except (ValueError, OverflowError):
        pass
    return fail(f"{text!r} is not a moment", "write it with its time zone: 2026-11-16T10:00:00Z")


def _principal(subject: str, roles: list[str] | None, tenant: str | None) -> Principal:
    named = caller(subject, roles)
    if named is None or subject.startswith("role:"):
        fail(f"{subject!r} calls nothing", "a role is held by somebody: --as user:ana --role role:clerk")
    return replace(named, tenant=tenant)


def catalogue_for(snapshot: Snapshot, tool: str, wanted: str | None) -> str:
    """The catalogue that was named, the only one with the tool, or the default."""
    having = [name for name in snapshot.catalogues if _has(snapshot, name, tool)]
    if wanted is not None and wanted not in snapshot.catalogues:
        known = ", ".join(sorted(snapshot.catalogues))
        fail(f"there is no catalogue {wanted!r}", did_you_mean(wanted, snapshot.catalogues) or f"there are {known}")
    if not having:
        _refuse_tool(snapshot, tool)
    if wanted is not None:
        if wanted not in having:
            note(f"{tool} is in {', '.join(sorted(having))}")
        return wanted
    if len(having) == 1:
        return having[0]
    if snapshot.default_catalogue is not None:
        return snapshot.default_catalogue
    return fail(f"{tool} is in {', '.join(sorted(having))}", "say in which one: --in CATALOGUE")


def _has(snapshot: Snapshot, catalogue: str, tool: str) -> bool:
    return tool in snapshot.catalogues[catalogue].tools or bool(snapshot.queries_in(catalogue, tool))


def _refuse_tool(snapshot: Snapshot, tool: str) -> None:
    advertised = {name for each in snapshot.catalogues.values() for name in each.tools} | snapshot.query_names
    under = [name for each in snapshot.catalogues.values() for name, identity in each.tools.items() if identity == tool]
    if under:
        fail(f"no catalogue calls a tool {tool!r}", f"it is called {', '.join(sorted(set(under)))}")
    if tool in snapshot.tools:
        fail(f"the tool {tool!r} is in no catalogue", "nobody can call it")
    fail(f"there is no tool {tool!r}", did_you_mean(tool, advertised))


def _known(what: str, known: Collection[str], names: list[str]) -> list[str]:
    for name in names:
        if name not in known:
            fail(f"there is no {what} {name!r}", did_you_mean(name, known) or f"there are {', '.join(sorted(known))}")
    return names


def _remember(memory: TurnMemory, access: Access, catalogue: str, tools: list[str], at: datetime) -> None:
    advertised = access.snapshot.catalogues[catalogue].tools
    for name in _known(f"tool in {catalogue}", advertised, tools):
        declared = access.snapshot.tools[advertised[name]]
        memory.reserves("")  # with which arguments it was called nobody said
        memory.notes(access.brings(declared), "allow", at=at)


def _repeat(memory: TurnMemory, call: Call, times: int) -> None:
    for _ in range(times):
        memory.reserves(fingerprint_of_call(call))
