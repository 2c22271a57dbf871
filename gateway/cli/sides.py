"""An assembled project as one side of a plan: policy rows, and documents as they mean and as they are written.

Both sides name places alike, wherever the older one was read from.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from gateway.access import Access
from gateway.assembly import Assembled, Project
from gateway.config.loader import Checked
from gateway.config.specs.overlays import OverlayDocument
from gateway.governance.diagnostics import Diagnostic, Position
from gateway.review.plan import Side
from gateway.review.rows import MemberRow, PolicyRow
from gateway.review.written import Written
from gateway.snapshot import Declared

Naming = Callable[[str], str]
"""From the name of a file to another one."""

_REFERENCES: Final = {"references": True}


def side(found: Assembled, access: Access, *, naming: Naming, environment: str | None) -> Side:
    """One side of a plan. `access` is that of the project, which has no errors."""
    place = partial(_placed, naming)
    documents = {
        kind: {name: replace(each, position=place(each.position)) for name, each in registry.items()}
        for kind, registry in access.snapshot.documents.items()
    }
    overlays = (_overlay(each, place) for each in found.loaded.documents if _is_elsewhere(each, environment))
    return Side(
        access,
        {**documents, "Overlay": {each.name: each for each in overlays}},
        rows=tuple(_rows(found, place)),
        cases=tuple(replace(case, position=place(case.position)) for case in access.snapshot.cases),
        texts={_identity(each): _written(each) for each in found.loaded.documents},
        definitions=found.imports,
    )


def renaming(project: Project, shown_as: Project) -> Naming:
    """Files of one project by the names that another one's have."""
    folders = ((project.configs, shown_as.configs), (project.policies, shown_as.policies))
    prefixes = [(f"{one.as_posix()}/", f"{other.as_posix()}/") for one, other in folders]

    def renamed(file: str) -> str:
        fitting = [(old, new) for old, new in prefixes if file.startswith(old)]
        old, new = max(fitting, key=lambda each: len(each[0]), default=("", ""))
        return new + file.removeprefix(old)

    return renamed


def renamed_problem(diagnostic: Diagnostic, naming: Naming) -> Diagnostic:
    related = tuple((note, _placed(naming, position)) for note, position in diagnostic.related)
    return replace(diagnostic, position=_placed(naming, diagnostic.position), related=related)


def _placed(naming: Naming, position: Position) -> Position:
    return replace(position, file=naming(position.file))


def _identity(checked: Checked) -> tuple[str, str]:
    data = checked.source.data
    return data["kind"], data["metadata"]["name"]


def _written(checked: Checked) -> Written:
    return Written(checked.source.data, checked.source.written, partial(_dumped, checked, exclude_defaults=False))


def _dumped(checked: Checked, *, exclude_defaults: bool) -> dict[str, Any]:
    """Plain data. The warnings that are off are about optional unions that were left out."""
    return checked.spec.model_dump(
        mode="json", by_alias=True, exclude_defaults=exclude_defaults, context=_REFERENCES, warnings=False
    )


def _is_elsewhere(checked: Checked, environment: str | None) -> bool:
    return isinstance(checked.spec, OverlayDocument) and checked.spec.spec.environment != environment


def _overlay(checked: Checked, place: Callable[[Position], Position]) -> Declared:
    kind, name = _identity(checked)
    position = place(checked.source.position(("metadata", "name")))
    return Declared(kind, name, None, position, _dumped(checked, exclude_defaults=True))


def _rows(found: Assembled, place: Callable[[Position], Position]) -> Iterator[PolicyRow | MemberRow]:
    for row in found.policies.permissions:
        subject, catalogue, object, actions, tier, effect = row.texts
        yield PolicyRow(subject, catalogue, object, frozenset(actions.split("|")), tier, effect, place(row.position))
    for link in found.policies.members:
        yield MemberRow("g", link.member.text, link.group.text, place(link.member.position))
    for link in found.policies.objects:
        yield MemberRow("g2", link.member.text, link.group.text, place(link.member.position))
