"""From a folder to checked documents: read, fill in the environment, apply the overlay, check what stands in them.

Every step goes on after problems, so that one run shows all of them. What the documents mean together is not
decided here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gateway.config.folders import read_folder
from gateway.config.kinds import SpecProblem, validate
from gateway.config.nodes import Document
from gateway.config.overlays import apply, is_overlay
from gateway.config.programs import check_programs
from gateway.config.references import check_references, identity_of
from gateway.config.specs.common import Document as Spec
from gateway.config.substitution import EnvUse, substitute
from gateway.governance.diagnostics import Diagnostic, in_order

_ABOUT_OTHER_FILES: Final = frozenset({"unknown-reference", "no-gateway", "overlay-target"})


@dataclass(frozen=True, slots=True)
class Checked:
    """A document whose shape is right, with the data and positions it came from."""

    spec: Spec
    source: Document


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a folder holds in one environment. With errors among the diagnostics, `documents` is incomplete."""

    documents: tuple[Checked, ...]
    diagnostics: tuple[Diagnostic, ...]
    environment: tuple[EnvUse, ...]
    names: Mapping[str, frozenset[str]]
    """The names of all documents by kind, of those with a wrong shape, too."""
    is_whole: bool = True
    """Whether every file could be read."""

    def without_echoes(self, problems: Iterable[Diagnostic]) -> list[Diagnostic]:
        """Without names that lead nowhere, if they may lead into a file that could not be read.

        A name that is nearly a known one is told all the same: it is more likely misspelled.
        """
        return [found for found in problems if self.is_whole or not _is_echo(found)]

    @property
    def has_errors(self) -> bool:
        return any(found.is_error for found in self.diagnostics)


def load(
    folders: Sequence[Path], *, environ: Mapping[str, str], environment: str | None = None, prefixes: bool = True
) -> Loaded:
    """Load all folders as one configuration. Positions name files by folder and path, unless `prefixes` is false."""
    documents: list[Document] = []
    problems: list[Diagnostic] = []
    for folder in folders:
        read, found = read_folder(folder, prefix=folder.as_posix() if prefixes else "")
        documents += read
        problems += found
    is_whole = not any(found.is_error for found in problems)
    filled, uses = _filled(documents, environ, problems)
    overlays = [document for document in filled if is_overlay(document)]
    plain = [document for document in filled if not is_overlay(document)]
    effective, found = apply(plain, overlays, environment=environment)
    problems += found
    checked = _checked([*effective, *overlays], problems)
    problems += check_references(effective)
    problems += [each for each in check_programs(effective) if not _follows_from(each, problems)]
    loaded = Loaded(tuple(checked), tuple(in_order(problems)), tuple(uses), _names(effective), is_whole)
    return replace(loaded, diagnostics=tuple(loaded.without_echoes(loaded.diagnostics)))


def _is_echo(found: Diagnostic) -> bool:
    return found.code in _ABOUT_OTHER_FILES and not (found.help or "").startswith("did you mean")


def _names(documents: Iterable[Document]) -> Mapping[str, frozenset[str]]:
    named: dict[str, set[str]] = {}
    for kind, name in filter(None, map(identity_of, documents)):
        named.setdefault(kind, set()).add(name)
    return {kind: frozenset(names) for kind, names in named.items()}


def _filled(
    documents: Iterable[Document], environ: Mapping[str, str], problems: list[Diagnostic]
) -> tuple[list[Document], list[EnvUse]]:
    filled: list[Document] = []
    uses: list[EnvUse] = []
    for document in documents:
        replaced, found, asked = substitute(document, environ)
        filled.append(replaced)
        problems += found
        uses += asked
    return filled, uses


def _checked(documents: Iterable[Document], problems: list[Diagnostic]) -> list[Checked]:
    checked: list[Checked] = []
    for document in documents:
        spec, found = validate(document.data, hidden=document.substituted)
        shapes = [_diagnostic(document, each) for each in found]
        problems += [each for each in shapes if not _follows_from(each, problems)]
        if spec is not None:
            checked.append(Checked(spec, document))
    return checked


def _follows_from(shape: Diagnostic, problems: Iterable[Diagnostic]) -> bool:
    """Whether a value has the wrong shape only because a variable in it could not be filled in."""
    start = shape.position
    return any(
        found.code.startswith("env-")
        and (found.position.file, found.position.line) == (start.file, start.line)
        and start.column <= found.position.column < start.column + start.width
        for found in problems
    )


def _diagnostic(document: Document, problem: SpecProblem) -> Diagnostic:
    position = document.key_position(problem.path) if problem.at_key else document.position(problem.path)
    return Diagnostic(problem.code, problem.message, position, help=problem.help)
