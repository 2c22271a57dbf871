"""`gateway storage copy-results`: large results from a folder into the spool of a project, or out of it."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.console import fail, out, print_line
from gateway.cli.project import DEFAULT_FOLDER, Environment, Policies, ProjectFolder, assembled, project_at, secrets_of
from gateway.cli.stores import done
from gateway.errors import GatewayError
from gateway.runtime.kept import kept_by
from gateway.runtime.spooling import SpoolPlace, copied_results

From = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="FOLDER", help="A spool of files that is copied into the project's.", show_default=False
    ),
]
To = Annotated[
    Path | None,
    typer.Option(
        "--to", metavar="FOLDER", help="Where the project's spool is copied to, as files.", show_default=False
    ),
]


def copy_results(
    source: From = None,
    target: To = None,
    folder: ProjectFolder = DEFAULT_FOLDER,
    policies: Policies = None,
    environment: Environment = None,
) -> None:
    """Copy large results into a bucket, or out of it. What is there already is compared; nothing is deleted.

    Records name results wherever they are, so they stay as they are. Can be interrupted, and done again.

    Exit codes: 0 copied, 1 one of the two cannot be used, or a copy differs, 2 wrong use.
    """
    if (source is None) == (target is None):
        fail("say where results are copied from, or where to", "give one of --from FOLDER and --to FOLDER")
    spool = _spool_of(folder, policies, environment)
    if source is not None:
        _refuse_missing(source)
        copy_between(source, spool, folder, policies)
    elif target is not None:
        copy_between(spool, target, folder, policies)


def copy_into_project(source: Path, folder: Path, policies: Path | None, environment: str | None) -> None:
    """Copy the results in a folder to where the project keeps its own, and tell how many."""
    _refuse_missing(source)
    copy_between(source, _spool_of(folder, policies, environment), folder, policies)


def copy_between(source: SpoolPlace, target: SpoolPlace, folder: Path, policies: Path | None) -> None:
    if isinstance(source, Path) and isinstance(target, Path) and source.absolute() == target.absolute():
        fail("the project keeps its results in that folder", "name another one")
    copied = done(copied_results(source, target, secrets_of(folder, policies)))
    there = f"; {copied.already_there} were there already" if copied.already_there else ""
    print_line(out(), ("✓ ", "green"), f"copied {copied.pieces} large results, {copied.bytes} bytes{there}")


def _refuse_missing(source: Path) -> None:
    if not source.is_dir():
        fail(f"there is no folder {source}", "name the folder of a spool, such as data/spool")


def _spool_of(folder: Path, policies: Path | None, environment: str | None) -> SpoolPlace:
    try:
        return kept_by(assembled(project_at(folder, policies), environment=environment, today=None)).spool
    except (StopIteration, KeyError):
        fail("the configuration does not tell where results are kept", "run: gateway check")
    except GatewayError as error:
        fail(error.message, error.help, code=1)
