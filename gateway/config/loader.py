"""Load folders: read documents, fill in environment variables, apply the overlay, check each document.

Every step continues after a problem, so that one run reports all of them. The linker checks what documents mean
together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from gateway.config.document_checks import check_embedded_code, check_references, document_identity
from gateway.config.environment_variables import EnvUse, substitute_environment
from gateway.config.kinds.common_specs import DocumentModel as Spec
from gateway.config.kinds.validation import ShapeProblem, validate_document
from gateway.config.overlays import apply_overlays, is_overlay
from gateway.config.yaml.document import YamlDocument
from gateway.config.yaml.folder import read_documents
from gateway.registries import Diagnostic, sort_diagnostics

_ABOUT_OTHER_FILES: Final = frozenset({"unknown-reference", "no-gateway", "overlay-target"})


@dataclass(frozen=True, slots=True)
class CheckedDocument:
    """A document of valid shape, with its source data and positions."""

    spec: Spec
    source: YamlDocument


@dataclass(frozen=True, slots=True)
class ConfigDocuments:
    """The documents of one environment. If `diagnostics` has errors, `documents` is incomplete."""

    documents: tuple[CheckedDocument, ...]
    diagnostics: tuple[Diagnostic, ...]
    environment: tuple[EnvUse, ...]
    names: Mapping[str, frozenset[str]]
    """Names of all documents by kind, including documents of invalid shape."""
    input_schemas: Mapping[str, dict[str, Any]]
    """Input schemas of Tool documents as they are enforced, by name, without those that do not compile."""
    is_whole: bool = True
    """Whether every file could be read."""

    def drop_follow_ups(self, problems: Iterable[Diagnostic]) -> list[Diagnostic]:
        """Drop unknown references if a file could not be read, because it may contain the missing document.

        Keep those that resemble a known name: they are more likely misspelled.
        """
        return [found for found in problems if self.is_whole or not _is_follow_up(found)]

    @property
    def has_errors(self) -> bool:
        return any(found.is_error for found in self.diagnostics)


def load_documents(
    folders: Sequence[Path], *, environ: Mapping[str, str], environment: str | None = None, prefixes: bool = True
) -> ConfigDocuments:
    """Load all folders as one configuration. Positions name files by folder and path if `prefixes` is true."""
    documents: list[YamlDocument] = []
    problems: list[Diagnostic] = []
    for folder in folders:
        read, found = read_documents(folder, prefix=folder.as_posix() if prefixes else "")
        documents += read
        problems += found
    is_whole = not any(found.is_error for found in problems)
    filled, uses = _substitute(documents, environ, problems)
    overlays = [document for document in filled if is_overlay(document)]
    plain = [document for document in filled if not is_overlay(document)]
    effective, found = apply_overlays(plain, overlays, environment=environment)
    problems += found
    checked = _validate([*effective, *overlays], problems)
    problems += check_references(effective)
    schemas: dict[str, dict[str, Any]] = {}
    problems += [each for each in check_embedded_code(effective, schemas) if not _follows_from(each, problems)]
    loaded = ConfigDocuments(
        tuple(checked), tuple(sort_diagnostics(problems)), tuple(uses), _names(effective), schemas, is_whole
    )
    return replace(loaded, diagnostics=tuple(loaded.drop_follow_ups(loaded.diagnostics)))


def _is_follow_up(found: Diagnostic) -> bool:
    return found.code in _ABOUT_OTHER_FILES and not (found.help or "").startswith("did you mean")


def _names(documents: Iterable[YamlDocument]) -> Mapping[str, frozenset[str]]:
    named: dict[str, set[str]] = {}
    for kind, name in filter(None, map(document_identity, documents)):
        named.setdefault(kind, set()).add(name)
    return {kind: frozenset(names) for kind, names in named.items()}


def _substitute(
    documents: Iterable[YamlDocument], environ: Mapping[str, str], problems: list[Diagnostic]
) -> tuple[list[YamlDocument], list[EnvUse]]:
    filled: list[YamlDocument] = []
    uses: list[EnvUse] = []
    for document in documents:
        replaced, found, used = substitute_environment(document, environ)
        filled.append(replaced)
        problems += found
        uses += used
    return filled, uses


def _validate(documents: Iterable[YamlDocument], problems: list[Diagnostic]) -> list[CheckedDocument]:
    checked: list[CheckedDocument] = []
    for document in documents:
        spec, found = validate_document(document.data, hidden=document.substituted)
        shapes = [_to_diagnostic(document, each) for each in found]
        problems += [each for each in shapes if not _follows_from(each, problems)]
        if spec is not None:
            checked.append(CheckedDocument(spec, document))
    return checked


def _follows_from(shape: Diagnostic, problems: Iterable[Diagnostic]) -> bool:
    """Whether the shape is wrong only because a variable in the value could not be filled in."""
    start = shape.position
    return any(
        found.code.startswith("env-")
        and (found.position.file, found.position.line) == (start.file, start.line)
        and start.column <= found.position.column < start.column + start.width
        for found in problems
    )


def _to_diagnostic(document: YamlDocument, problem: ShapeProblem) -> Diagnostic:
    position = document.key_position(problem.path) if problem.at_key else document.position(problem.path)
    return Diagnostic(problem.code, problem.message, position, help=problem.help)
