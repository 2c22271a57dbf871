"""`gateway tools`: what a catalogue offers, to everybody who looks or to one caller, and as models are told.

Prompts and resources are listed after the tools.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, cast

import typer

from gateway.access import Access
from gateway.advertising import described
from gateway.assembly import Assembled
from gateway.cli.callers import As, Roles, caller
from gateway.cli.console import fail, note, out, print_json, print_table
from gateway.cli.project import (
    DEFAULT_FOLDER,
    Environment,
    Policies,
    ProjectFolder,
    Today,
    assembled,
    project_at,
    sound,
)
from gateway.core.definitions import Provider, shaped
from gateway.governance.diagnostics import did_you_mean
from gateway.governance.principals import Principal
from gateway.governance.rules import GateRule
from gateway.review.listings import Beside, Offer, beside, beside_for, offers, offers_to
from gateway.snapshot import Catalogue, Snapshot

_COLOURS: Final = {"perhaps": "yellow", "deprecated": "yellow", "unknown": "yellow"}
_COLUMNS: Final = (
    "name",
    "title",
    "tier",
    "flags",
    "effects",
    "lifecycle",
    "backend",
    "owner",
    "gates",
    "hidden",
    "may call",
    "held",
)
_BESIDE_COLUMNS: Final = ("kind", "name", "policy", "tier", "flags", "upstream")


@dataclass(frozen=True, slots=True)
class _Question:
    """Which tools are asked about: to whom, when, and whether hidden ones count."""

    access: Access
    principal: Principal | None
    at: datetime
    with_hidden: bool

    @property
    def snapshot(self) -> Snapshot:
        return self.access.snapshot

    def offers(self, catalogue: Catalogue) -> list[Offer]:
        if self.principal is None:
            found = offers(self.snapshot, catalogue)
        else:
            found = offers_to(self.access, self.principal, catalogue, at=self.at)
        return [offer for offer in found if self.with_hidden or not offer.is_hidden]

    def beside(self, catalogue: Catalogue) -> list[Beside]:
        if self.principal is None:
            return beside(self.snapshot, catalogue)
        return beside_for(self.access, self.principal, catalogue)


def list_tools(
    catalogue: Annotated[
        str | None, typer.Argument(help="Which catalogue; without it, all of them.", show_default=False)
    ] = None,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    on: Today = None,
    subject: As = None,
    roles: Roles = None,
    with_hidden: Annotated[bool, typer.Option("--all", help="Hidden tools, too.")] = False,
    collisions: Annotated[
        bool, typer.Option("--collisions", help="What wanted one name or one URI, and who got it.")
    ] = False,
    output: Annotated[
        Literal["text", "json", "openai", "anthropic", "gemini", "mcp"],
        typer.Option(help="For people, for programs, or as definitions for a provider's models."),
    ] = "text",
) -> None:
    """List the tools, prompts and resources of a catalogue, or all catalogues; with --as, what one caller gets."""
    principal = caller(subject, roles)
    project = project_at(folder, policies)
    found = sound(assembled(project, environment=environment, today=on), project)
    moment = datetime.now(UTC)
    at = moment if on is None else moment.replace(year=on.year, month=on.month, day=on.day)
    question = _Question(_access(found), principal, at, with_hidden)
    if collisions:
        _print_collisions(_chosen(question.snapshot, catalogue), as_json=output != "text")
        return
    chosen = _one(question.snapshot, catalogue)
    if chosen is None:
        _print_catalogues(question, output)
        return
    if principal is not None and not question.access.admits(principal, chosen.name):
        note(f"{principal.subject} is not in the audience of {chosen.name}: {', '.join(sorted(chosen.audience))}")
    if output in ("text", "json"):
        _print_offers(question.offers(chosen), question.beside(chosen), as_json=output == "json")
    else:
        _print_definitions(question, chosen, cast(Provider, output))


def _access(found: Assembled) -> Access:
    assert found.access is not None, "only sound projects have an access"  # noqa: S101 - `sound` has seen to it
    return found.access


def _one(snapshot: Snapshot, name: str | None) -> Catalogue | None:
    """The catalogue of that name, or the only one; `None` if there are several and none is named."""
    chosen = _chosen(snapshot, name)
    return chosen[0] if name is not None or len(chosen) == 1 else None


def _chosen(snapshot: Snapshot, name: str | None) -> list[Catalogue]:
    if name is None:
        return [snapshot.catalogues[each] for each in sorted(snapshot.catalogues)]
    if name not in snapshot.catalogues:
        known = ", ".join(sorted(snapshot.catalogues)) or "none"
        help = did_you_mean(name, snapshot.catalogues) or f"there are: {known}; a folder is given with --project"
        fail(f"there is no catalogue {name!r}", help)
    return [snapshot.catalogues[name]]


def _print_catalogues(question: _Question, output: str) -> None:
    catalogues = _chosen(question.snapshot, None)
    if output not in ("text", "json"):
        fail("definitions are those of one catalogue", f"name one: {', '.join(each.name for each in catalogues)}")
    besides = {each.name: [found.offer.kind for found in question.beside(each)] for each in catalogues}
    rows = [
        {
            "name": each.name,
            "title": each.title or "",
            "tools": len(question.offers(each)),
            "prompts": besides[each.name].count("prompt"),
            "resources": besides[each.name].count("resource"),
            "hidden": len(each.hidden),
            "path": each.path,
            "pipeline": each.pipeline,
            "audience": sorted(each.audience),
            "owner": each.owner or "",
        }
        for each in catalogues
    ]
    if output == "json":
        _print_json(rows)
    else:
        print_table(
            out(), list(rows[0]) if rows else ["name"], [[_cell(cell) for cell in row.values()] for row in rows]
        )


def _print_offers(found: Sequence[Offer], others: Sequence[Beside], *, as_json: bool) -> None:
    rows = [_row(offer) for offer in found]
    beside = [_beside_row(each) for each in others]
    if as_json:
        tools = [{**row, "position": str(offer.tool.position)} for row, offer in zip(rows, found, strict=True)]
        _print_json([*({"kind": "tool", **each} for each in tools), *beside])
        return
    if not rows:
        note("there is no tool to show")
    else:
        # flags that count only because the effects are unknown would read as if somebody had declared them
        known = [sorted(offer.tool.trust.known_flags) for offer in found]
        shown = [{**row, "flags": flags} for row, flags in zip(rows, known, strict=True)]
        cells = [[_cell(cell) for cell in row.values()] for row in shown]
        print_table(out(), _COLUMNS, cells, colours=_COLOURS)
    if beside:
        out().print()
        cells = [[_cell(row[column]) for column in _BESIDE_COLUMNS] for row in beside]
        print_table(out(), _BESIDE_COLUMNS, cells)


def _beside_row(each: Beside) -> dict[str, Any]:
    offer = each.offer
    return {
        "kind": offer.kind,
        "name": each.name,
        "policy": offer.object,
        "tier": offer.trust.tier.name,
        "flags": sorted(offer.trust.flags),
        "upstream": offer.upstream,
        "position": str(offer.position),
    }


def _row(offer: Offer) -> dict[str, Any]:
    tool = offer.tool
    return {
        "name": offer.name,
        "title": tool.title or "",
        "tier": tool.trust.tier.name,
        "flags": sorted(tool.trust.flags),
        "effects": tool.trust.effects,
        "lifecycle": tool.lifecycle,
        "backend": f"{tool.backend} {tool.upstream}" if tool.upstream else tool.backend,
        "owner": tool.owner or "",
        "gates": [_gate(rule) for rule in offer.gates],
        "hidden": offer.is_hidden,
        "mayCall": offer.may_call,
        "held": offer.is_held,
    }


def _gate(rule: GateRule) -> str:
    return rule.name if rule.mode == "enforce" else f"{rule.name} ({rule.mode})"


def _print_definitions(question: _Question, catalogue: Catalogue, provider: Provider) -> None:
    definitions, unknown = [], []
    for offer in question.offers(catalogue):
        if not offer.tool.is_in_use(question.at.date()):
            continue
        told = described(offer.name, offer.tool, catalogue)
        if told is None:
            unknown.append(offer.name)
        else:
            definitions.append(shaped(told, provider))
    _print_json(definitions)
    if unknown:
        note(f"left out, because only the upstream knows their schema: {', '.join(unknown)}")


def _print_collisions(catalogues: Sequence[Catalogue], *, as_json: bool) -> None:
    rows = [
        {
            "catalogue": catalogue.name,
            "kind": each.kind,
            "name": each.incoming.name,
            "outcome": each.outcome,
            "because": each.reason,
            "existing": f"{each.existing.source} {each.existing.position.file}:{each.existing.position.line}",
            "incoming": f"{each.incoming.source} {each.incoming.position.file}:{each.incoming.position.line}",
        }
        for catalogue in catalogues
        for each in catalogue.collisions
    ]
    if as_json:
        _print_json(rows)
    elif rows:
        print_table(out(), list(rows[0]), [list(row.values()) for row in rows])
    else:
        print_table(out(), ["nothing wanted the name of another"], [])


def _print_json(value: Any) -> None:
    print_json(value)


def _cell(value: Any) -> str:
    match value:
        case None | False:
            return ""
        case True:
            return "yes"
        case list():
            return ", ".join(value)
    return str(value)
