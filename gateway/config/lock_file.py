"""The lock file of a project, `gateway.lock` beside its documents: read with a diagnostic for whatever is wrong in it.

A definition whose digest does not fit is not taken: nobody knows what was looked at then.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from gateway.config.folders import read_file
from gateway.config.lock_text import VERSION
from gateway.config.nodes import Document
from gateway.config.nodes import Path as Place
from gateway.governance.diagnostics import Diagnostic, Position
from gateway.governance.imports import KINDS, BadDefinition, DefinitionKind, ImportedDefinition
from gateway.governance.locks import Lock, LockedUpstream, in_order

LOCK_FILE: Final = "gateway.lock"
MAX_BYTES: Final = 16 << 20
_AGAIN: Final = "look at what changed, and run: gateway lock"


def read_lock(folder: Path) -> tuple[Lock, list[Diagnostic]]:
    """The lock of a folder of documents, empty if there is none. With errors, what is left of it."""
    path = folder / LOCK_FILE
    if not path.exists() and not path.is_symlink():
        return Lock(), []
    documents, problems = read_file(path, path.as_posix(), limit=MAX_BYTES)
    if any(found.is_error for found in problems) or not documents:
        return Lock(), problems or [
            Diagnostic("bad-lock", "the file is empty", Position(path.as_posix(), 1), help=_AGAIN)
        ]
    reading = _Reading()
    reading.read(documents)
    return Lock(reading.upstreams, in_order(reading.definitions)), [*problems, *reading.problems]


class _Reading:
    """One pass over the documents of a lock."""

    def __init__(self) -> None:
        self.upstreams: dict[str, LockedUpstream] = {}
        self.definitions: list[ImportedDefinition] = []
        self.problems: list[Diagnostic] = []
        self._seen: dict[tuple[str, str, str], Position] = {}

    def read(self, documents: list[Document]) -> None:
        head, *rest = documents
        if not self._is_known(head):
            return
        for each in rest:
            if not isinstance(each.data.get("upstream"), str):
                self._note(each, "the block says no upstream", ())
            elif "sources" in each.data:
                self._upstream(each)
            else:
                self._definition(each)

    def _is_known(self, head: Document) -> bool:
        version = head.data.get("version")
        if version == VERSION and type(version) is int:
            return True
        if "version" not in head.data:
            self._note(head, "the file does not begin with its version", ())
        elif isinstance(version, int) and version > VERSION:
            message = f"version {version} of the file is newer than this program, which reads {VERSION}"
            self._note(head, message, ("version",), help="use the program that wrote it, or a newer one")
        else:
            self._note(head, "the file has a version that never was", ("version",))
        return False

    def _upstream(self, document: Document) -> None:
        data = document.data
        if unknown := data.keys() - {"upstream", "sources", "server", "confirmed"}:
            self._note(document, f"{min(unknown)!r} is not known here", (min(unknown),))
            return
        sources, server = data["sources"], data.get("server", {})
        if not _is_table(sources, lambda each: isinstance(each, list) and all(isinstance(part, str) for part in each)):
            self._note(document, "sources are lists of texts by environment", ("sources",))
            return
        if not _is_table(server, lambda each: isinstance(each, str)):
            self._note(document, "what a server says of itself are texts", ("server",))
            return
        confirmed = data.get("confirmed")
        if not isinstance(confirmed, str | None):
            self._note(document, "the moment of a confirmation is a text", ("confirmed",))
            return
        name = data["upstream"]
        if name in self.upstreams:
            self._note(document, f"the upstream {name!r} is told twice", ("upstream",))
            return
        found = {environment: tuple(source) for environment, source in sources.items()}
        self.upstreams[name] = LockedUpstream(name, found, server, confirmed, document.position(("upstream",)))

    def _definition(self, document: Document) -> None:
        data = document.data
        kinds = [kind for kind in KINDS if kind in data]
        if len(kinds) != 1 or data.keys() != {"upstream", kinds[0], "digest", "definition"}:
            self._note(document, "the block is neither an upstream nor one definition with its digest", ())
            return
        [kind] = kinds
        try:
            found = ImportedDefinition.read(
                data["upstream"], data["definition"], kind=kind, is_pinned=True, position=document.position((kind,))
            )
        except BadDefinition as error:
            self._note(document, f"the definition cannot be used: {error}", ("definition",))
            return
        self._take(document, replace(found, locate=partial(_located, document)), kind)

    def _take(self, document: Document, found: ImportedDefinition, kind: DefinitionKind) -> None:
        data = document.data
        key = (found.upstream, kind, found.name)
        if found.name != data[kind]:
            self._note(document, f"the block is called {data[kind]!r}, its definition {found.name!r}", (kind,))
        elif data["digest"] != f"sha256:{found.digest}":
            message = f"the digest of {found.identity} does not fit its definition: one of them was changed by hand"
            self._tampered(document, message)
        elif found.upstream not in self.upstreams:
            self._note(document, f"nothing says where upstream {found.upstream!r} is", ("upstream",))
        elif key in self._seen:
            self._note(document, f"{found.identity} is locked twice", (kind,))
        else:
            self._seen[key] = document.position((kind,))
            self.definitions.append(found)

    def _tampered(self, document: Document, message: str) -> None:
        self.problems.append(Diagnostic("lock-tampered", message, document.position(("digest",)), help=_AGAIN))

    def _note(self, document: Document, message: str, place: Place, *, help: str = _AGAIN) -> None:
        position = document.key_position(place) if place else document.position(place)
        self.problems.append(Diagnostic("bad-lock", message, position, help=help))


def _located(document: Document, path: Place) -> Position:
    """Where a part of a definition stands: a text of several lines begins behind its key."""
    return document.key_position(("definition", *path))


def _is_table(value: Any, fits: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) and fits(each) for key, each in value.items())
