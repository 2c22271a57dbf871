"""`gateway lock`: write down what upstreams bring, so that nothing else of them is served.

Exit codes: 0 written, or with `--check` unchanged; 1 anything else.
"""

import difflib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.bringing import Compared, Upstreams, compare
from gateway.cli.console import err, fail, out, print_line
from gateway.cli.drifting import print_changes
from gateway.cli.problems import print_problems
from gateway.cli.project import DEFAULT_FOLDER, Environment, Policies, ProjectFolder, assembled, sources_of
from gateway.config.linking.effects import proposals_for
from gateway.config.linking.mentions import is_imported
from gateway.config.lock_text import lock_text
from gateway.config.pins import upstreams_of
from gateway.config.specs.backends import UpstreamBackend
from gateway.config.specs.tools import ToolDocument
from gateway.config.specs.upstreams import UpstreamDocument
from gateway.governance.effects import Proposal
from gateway.governance.locks import Lock
from gateway.governance.names import NAME
from gateway.vetting.drift import drift


def write_lock(
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
    upstream: Upstreams = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if the lock would change.")
    ] = False,
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Serve what is withheld because it was another definition in between."),
    ] = False,
) -> None:
    """Pin what upstreams bring in gateway.lock: ask each of them, show what changed, and write it down."""
    if check and confirm:
        fail("--check writes nothing, so that it confirms nothing", "use one of the two")
    found = compare(folder, policies, environment, upstream)
    lock = _renewed(found, only_some=bool(upstream), confirm=confirm)
    text = lock_text(lock)
    old = found.lock_file.read_text(encoding="utf-8", errors="replace") if found.lock_file.is_file() else ""
    print_changes(err() if check else out(), drift(found.locked, found.found))
    if check:
        _end_check(found.lock_file, old, text)
        return
    if text != old:
        _write(found.lock_file, text)
    _print_findings(found, environment)
    _print_proposals(found)
    count = len(lock.definitions)
    told = "is as it was" if text == old else "is written"
    names = ", ".join(sorted(lock.upstreams)) or "none"
    print_line(out(), f"{found.lock_file} {told}: {count} definition{'' if count == 1 else 's'}, upstreams: {names}")


def _renewed(found: Compared, *, only_some: bool, confirm: bool) -> Lock:
    lock = found.assembled.lock
    moment = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    for each in found.brought:
        known = lock.upstreams.get(each.upstream.name)
        earlier = None if known is None else known.confirmed
        confirmed = moment if confirm else earlier
        lock = lock.with_upstream(replace(each.upstream, confirmed=confirmed), each.definitions)
    return lock if only_some else lock.only(upstreams_of(found.assembled.loaded))


def _end_check(path: Path, old: str, new: str) -> None:
    if old == new:
        print_line(out(), ("✓", "green"), f" {path} is what the upstreams bring")
        return
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), fromfile=path.as_posix(), tofile="what the upstreams bring", lineterm=""
    )
    for line in lines:
        style = {"-": "red", "+": "green", "@": "cyan"}.get(line[:1], "")
        print_line(out(), (line, style))
    fail(f"{path} is not what the upstreams bring", "look at the difference, and run: gateway lock", code=1)


def _write(path: Path, text: str) -> None:
    """All of it or nothing: whoever reads meanwhile reads the old one."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".gateway.lock-", encoding="utf-8", delete=False
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(file.name, 0o644)  # as any other file of the project: it holds nothing secret
        os.replace(file.name, path)
    except OSError as error:
        fail(f"{path} cannot be written: {(error.strerror or 'unknown').lower()}", code=1)


def _print_findings(found: Compared, environment: str | None) -> None:
    """What deserves a look in what was just locked."""
    again = assembled(found.project, environment=environment, today=datetime.now(UTC).date())
    lock = found.lock_file.as_posix()
    findings = [each for each in again.diagnostics if each.position.file == lock]
    if findings:
        print_problems(err(), findings, sources_of(found.project))


def _print_proposals(found: Compared) -> None:
    """Flags for tools whose effects nobody declares, as YAML to begin a review with. Nothing is written anywhere."""
    for upstream, proposals in _proposals(found):
        print_line(out())
        print_line(out(), f"# Upstream {upstream}: a proposal from what its server claims and from names.")
        print_line(out(), "# Nobody has reviewed it. Correct the flags, then write them below spec.import:")
        print_line(out(), "tools:")
        for each in proposals:
            print_line(out(), f"  {each.line}  # {each.because}")
        print_line(out())


def _proposals(found: Compared) -> Iterator[tuple[str, list[Proposal]]]:
    """By upstream, for imported tools that no Tool document publishes."""
    documents = [each.spec for each in found.assembled.loaded.documents]
    backends = [each.spec.backend for each in documents if isinstance(each, ToolDocument)]
    published = {(each.upstream, each.tool) for each in backends if isinstance(each, UpstreamBackend)}
    specs = {each.metadata.name: each.spec for each in documents if isinstance(each, UpstreamDocument)}
    for brought in found.brought:
        name = brought.upstream.name
        imported = [
            each
            for each in brought.definitions
            if each.kind == "tool"
            and is_imported(each.name, specs[name].import_)
            and (name, each.name) not in published
            and re.fullmatch(NAME, each.name)
        ]
        if proposals := proposals_for(specs[name], imported):
            yield name, proposals
