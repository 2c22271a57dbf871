"""`gateway access attest`: write the attestation of an owner into the project, as a document to review and commit."""

import subprocess
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gateway.app import LoadedProject, find_attestation_policy, list_attestations, write_atomic
from gateway.cli.options import (
    DEFAULT_FOLDER,
    DayOption,
    EnvironmentOption,
    FolderArgument,
    OutputOption,
    PoliciesOption,
    parse_day,
)
from gateway.cli.output import fail, print_json, print_line, print_note, stdout
from gateway.cli.project.access import noon_or_now, project_access, require_owner
from gateway.cli.project.access_tables import print_scope
from gateway.cli.project_loader import find_project, load_with_environ, require_valid
from gateway.config import YamlDocument, render_effective_yaml
from gateway.review import (
    AccessScopes,
    AttestedAccess,
    digest_access,
    find_growth,
    format_growth,
    list_policy_rows,
    scope_data,
)

_FOLDER: Final = "attestations"
_HEADER: Final = """\
# yaml-language-server: $schema=../.schema/gateway.v1.json
# Written by gateway access attest. An edited list of access does not have the digest any more.
"""
_MOST_BYTES: Final = 1 << 20
"""The limit of a document's file."""
_SECONDS: Final = 10

app = typer.Typer(add_completion=False)


@app.command(epilog="gateway access attest --owner team-finance --until 2027-03-31 --by 'Kim Example'")
def attest_access(
    folder: FolderArgument = DEFAULT_FOLDER,
    owner: Annotated[str, typer.Option(help="The owner whose access is attested.", show_default=False)] = ...,  # type: ignore[assignment]  # typer's sign for a required option
    until: Annotated[
        date,
        typer.Option(
            parser=parse_day, metavar="DAY", help="The last day on which the attestation counts.", show_default=False
        ),
    ] = ...,  # type: ignore[assignment]  # as above
    by: Annotated[
        str | None, typer.Option(help="The person who looked at the access; by default, the user of Git.")
    ] = None,
    seen: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="Refuse if the access does not have this digest any more.")
    ] = None,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    on: DayOption = None,
    output: OutputOption = "text",
) -> None:
    """Attest that the access to what an owner owns is as it should be. gateway access --owner shows this access.

    Writes configs/attestations/OWNER.yaml. gateway check warns when it is over, and when access has grown since.

    Exit codes: 0 written, 1 it was refused or cannot be written, 2 wrong use.
    """
    project = find_project(folder, policies)
    found = require_valid(load_with_environ(project, environment=environment, today=on), project)
    access, at = project_access(found), noon_or_now(on)
    require_owner(access.snapshot, owner)
    _check_last_day(found, owner, today=at.date(), until=until)
    person = by or _find_git_user(project.configs)
    scope = AccessScopes(access, list_policy_rows(found.policies, at), at=at).find(owner)
    digest = digest_access(scope)
    if seen is not None and seen != digest:
        fail("the access is not what you saw", f"look at gateway access --owner {owner}: it is {digest}", code=1)
    name = owner if environment is None else f"{owner}-{environment}"
    grown = _list_growth(found, owner, scope, environment=environment)
    document = _build_document(name, owner, scope, digest=digest, by=person, on=at.date(), until=until)
    if environment is not None:
        document["spec"]["environment"] = environment
    path = project.configs / _FOLDER / f"{name}.yaml"
    _write(path, document)
    if output == "json":
        print_json({"file": path.as_posix(), "digest": digest, "grown": grown, **document})
        return
    print_scope(stdout(), scope)
    print_line(stdout(), ("digest ", "dim"), digest)
    for words in grown:
        print_note(f"new since the last attestation: {words}")
    print_line(stdout(), f"wrote {path}")


def _check_last_day(found: LoadedProject, owner: str, *, today: date, until: date) -> None:
    if until < today:
        fail(f"{until} has passed", "name a later day: --until 2027-03-31")
    required = find_attestation_policy(project_access(found), found.loaded)
    if required is not None and owner in required.owners and until > today + required.every:
        last = today + required.every
        fail(f"attestations count for {required.every.days} days at most", f"name {last} or an earlier day", code=1)


def _find_git_user(folder: Path) -> str:
    try:
        run = subprocess.run(  # noqa: S603 - a list, no shell
            ["git", "-C", str(folder), "config", "user.name"],  # noqa: S607 - the Git of the user's PATH
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        name = run.stdout.decode(errors="replace").strip()
    except (OSError, subprocess.TimeoutExpired):
        name = ""
    if not name:
        fail("Git has no name of a user", "name the person who looked at the access: --by 'Kim Example'")
    return name


def _list_growth(
    found: LoadedProject, owner: str, scope: tuple[AttestedAccess, ...], *, environment: str | None
) -> list[str]:
    """Return what is new since the last attestation of the owner; empty if there is none."""
    earlier = [each for each in list_attestations(found.loaded, environment=environment) if each.owner == owner]
    return [format_growth(each) for last in earlier for each in find_growth(last.access, scope)]


def _build_document(
    name: str, owner: str, scope: tuple[AttestedAccess, ...], *, digest: str, by: str, on: date, until: date
) -> dict[str, Any]:
    spec = {"by": by, "date": on.isoformat(), "until": until.isoformat(), "digest": digest}
    return {
        "apiVersion": "gateway/v1",
        "kind": "Attestation",
        "metadata": {"name": name, "owner": owner},
        "spec": {**spec, "access": [scope_data(each) for each in scope]},
    }


def _write(path: Path, document: dict[str, Any]) -> None:
    source = YamlDocument(document, path.as_posix(), {}, {})
    text = f"{_HEADER}{render_effective_yaml([source], origins=False)}".encode()
    if len(text) > _MOST_BYTES:
        help = "give its tools and callers to several owners"
        fail(f"the list of access is larger than {_MOST_BYTES >> 20} MiB", help, code=1)
    try:
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, text)
        path.chmod(0o644)  # a document to commit, not a secret
    except OSError as error:
        fail(f"{path} cannot be written: {(error.strerror or 'unknown reason').lower()}", code=1)
