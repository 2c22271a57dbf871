"""`gateway report`: the review report of a project as a page, as data and for OSCAL, and the check of its signature.

Exit codes of `verify`: 0 the report is what was signed, 1 it is not, 2 wrong use.
"""

from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gateway.app import LoadedProject, ProjectFolders
from gateway.audit import SigningKey, VerifyKey
from gateway.cli.options import (
    DEFAULT_FOLDER,
    ConnectionEnvOption,
    DatabaseOption,
    DayOption,
    EnvironmentOption,
    FolderArgument,
    OutputOption,
    PoliciesOption,
    parse_duration,
)
from gateway.cli.output import fail, parse_time, print_document, print_json, print_line, print_note, stdout
from gateway.cli.project.plan import make_plan, open_older
from gateway.cli.project.plan_inputs import path_mapper
from gateway.cli.project.replay_inputs import (
    open_other_calls,
    open_project_calls,
    open_remote_calls,
    replay_with_progress,
)
from gateway.cli.project.report.files import read_bounded_file, read_report_files, report_stem, write_files
from gateway.cli.project.report.inputs import choose_day, choose_moment, make_report_input, read_dependencies
from gateway.cli.project.report.store import StoreAddress, read_store
from gateway.cli.project_loader import find_project, load_with_environ, require_valid
from gateway.errors import GatewayError
from gateway.model import to_microseconds
from gateway.registries import compare_definitions
from gateway.review import (
    MOST_SIGNATURE,
    SIGNATURE_SUFFIX,
    CallSelection,
    InvalidReport,
    LinkTemplate,
    ReportData,
    ReportInput,
    build_report,
    read_signature,
    render_oscal,
    render_page,
    report_to_json,
    sign_report,
    verify_report,
)

_CREATE: Final = "create"
_UNUSED: Final = timedelta(days=30)
_COLOURS: Final = {"high": "bold red", "medium": "yellow", "low": "dim"}
_MOST_KEY: Final = 64 << 10


class _ReportGroup(TyperGroup):
    """Group that reads a word which is no subcommand as the project: `gateway report ./project`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_named else [_CREATE, *args])


app = typer.Typer(
    cls=_ReportGroup,
    add_completion=False,
    subcommand_metavar="[create] [PROJECT] | verify FILE ...",
    help="Write the review report, one document that a security reviewer can sign, or verify its signature.",
    epilog="gateway report --output review.html\n\n"
    "gateway report --against main --replay 7d --database data/gateway.db --output review.html --sign review.key\n\n"
    "gateway report verify review.html --key review.key.pub\n\n"
    "gateway report create --help lists the options of a report.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(
    _CREATE,
    epilog="gateway report --environment prod --against main --output review.html\n\n"
    "gateway report --output json | jq .summary",
)
def create(
    folder: FolderArgument = DEFAULT_FOLDER,
    policies: PoliciesOption = None,
    environment: EnvironmentOption = None,
    on: DayOption = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="REV", help="Compare with a commit, or with another folder.", show_default=False),
    ] = None,
    database: DatabaseOption = None,
    connection_env: ConnectionEnvOption = None,
    anchors: Annotated[
        Path | None, typer.Option(help="The file of anchors of the decision log.", show_default=False)
    ] = None,
    public_key: Annotated[
        list[Path] | None, typer.Option(help="A public key of anchors; may be given again.", show_default=False)
    ] = None,
    replay: Annotated[
        datetime | None,
        typer.Option(
            parser=parse_time, metavar="AGE|MOMENT", help="Decide recorded calls since then again.", show_default=False
        ),
    ] = None,
    unused: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_duration,
            metavar="TIME",
            help="Access without a recorded use in this time is unused; by default 30d.",
            show_default=False,
        ),
    ] = None,
    drift: Annotated[
        bool, typer.Option("--drift", help="Ask the upstreams what changed since they were locked.")
    ] = False,
    dependencies: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A lock file with hashes, or a CycloneDX file.", show_default=False),
    ] = None,
    commit: Annotated[
        str | None, typer.Option(help="The commit of the project, for the page and its links.", show_default=False)
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where files can be read: https://git.example/blob/{rev}/{file}#L{line}",
            show_default=False,
        ),
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Sign the report with this private key.", show_default=False)
    ] = None,
    output: Annotated[
        str, typer.Option(metavar="text|json|FILE.html", help="A summary, the data, or the files of a report.")
    ] = "text",
) -> None:
    """Write the review report of a project: FILE.html, and beside it FILE.json and FILE.oscal.json.

    Equal inputs give equal bytes. The day is an input: --on, SOURCE_DATE_EPOCH, or today.

    Exit codes: 0 written, 1 the project or a source cannot be read, 2 wrong use.
    """
    page = _page_path(output, sign)
    links = _links(link, commit)
    key = None if sign is None else _load_signing_key(sign)
    project = find_project(folder, policies)
    day = choose_day(on)
    found = require_valid(load_with_environ(project, environment=environment, today=day), project)
    source = make_report_input(found, project, day=day, environment=environment, commit=commit)
    store = StoreAddress(database, connection_env)
    with ExitStack() as closing:
        older = None if against is None else closing.enter_context(open_older(project, against, policies))
        if older is not None and against is not None:
            source = _compare(source, project, older, against)
        if replay is not None:
            source = _replay(source, found, project, older, store, replay)
    if drift:
        source = _ask_upstreams(source, folder, policies)
    if dependencies is not None:
        source = replace(source, dependencies=read_dependencies(dependencies))
    source = read_store(
        source,
        store,
        found.policies,
        at=choose_moment(on),
        unused=unused or _UNUSED,
        anchors=anchors,
        public_keys=public_key or (),
    )
    report = build_report(source)
    if page is not None:
        _write(page, report, links, key)
    elif output == "json":
        print_document(report_to_json(report), is_json=True)
    else:
        _print_summary(report)


@app.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file of the report; the others are beside it.")],
    key: Annotated[list[Path] | None, typer.Option(help="A public key of reviewers; may be given again.")] = None,
    output: OutputOption = "text",
) -> None:
    """Check offline that a report is exactly what was signed. Exit codes: 0 it is, 1 it is not, 2 wrong use."""
    if not key:
        fail("no public key was named", "name the one of the reviewer: --key review.key.pub")
    keys = [_load_verify_key(each) for each in key]
    stem = report_stem(file)
    try:
        found = read_signature(_read_signature_file(stem))
        verify_report(found, read_report_files(stem), keys)
    except GatewayError as error:
        fail(error.message, error.help, code=1)
    if output == "json":
        print_json({"verified": True, "key": found.key, "revision": found.revision, "files": dict(found.files)})
        return
    names = ", ".join(found.files)
    print_line(stdout(), ("✓ ", "bold green"), f"key {found.key} signed {names} of revision {found.revision[:12]}")


def _page_path(output: str, sign: Path | None) -> Path | None:
    if output in ("text", "json"):
        if sign is not None:
            fail("there is no file to sign", "name the page: --output review.html")
        return None
    if not output.endswith(".html") or Path(output).name == ".html":
        fail(f"{output!r} is neither text nor json nor the name of a page", "name a page: --output review.html")
    return Path(output)


def _links(link: str | None, commit: str | None) -> LinkTemplate | None:
    if link is None:
        return None
    if not link.startswith(("https://", "http://")) or "{file}" not in link:
        fail("the link is not an address with {file}", "write --link 'https://git.example/blob/{rev}/{file}#L{line}'")
    if "{rev}" in link and not commit:
        fail("the link needs a commit for {rev}", "name it: --commit $(git rev-parse HEAD)")
    return LinkTemplate(link, commit or "")


def _compare(source: ReportInput, project: ProjectFolders, older: ProjectFolders, against: str) -> ReportInput:
    plan = make_plan(older, project, against=against, environment=source.environment, today=source.day)
    return replace(source, plan=plan, against=against)


def _replay(
    source: ReportInput,
    found: LoadedProject,
    project: ProjectFolders,
    older: ProjectFolders | None,
    store: StoreAddress,
    since: datetime,
) -> ReportInput:
    """Replay recorded calls: compared with the older project, or else with what was recorded."""
    before = None
    if older is not None:
        before = load_with_environ(older, environment=source.environment, today=source.day).access
    selection = CallSelection(to_microseconds(since))
    if store.database is not None:
        opened = open_other_calls(store.database, selection, looks_back=True)
    elif store.connection_env is not None:
        opened = open_remote_calls(store.connection_env, selection, looks_back=True)
    else:
        opened = open_project_calls(found, project, selection, looks_back=True)
    naming = path_mapper(project if older is None else older, project)
    with opened as history:
        result = replay_with_progress(history, source.access, baseline=before, naming=naming, selection=selection)
    return replace(source, replay=result)


def _ask_upstreams(source: ReportInput, folder: Path, policies: Path | None) -> ReportInput:
    from gateway.cli.project.lock import compare_with_lock  # only this option asks servers

    found = compare_with_lock(folder, policies, source.environment, None)
    return replace(source, drift=compare_definitions(found.locked, found.found))


def _write(page: Path, report: ReportData, links: LinkTemplate | None, key: SigningKey | None) -> None:
    stem = page.name.removesuffix(".html")
    files = {
        f"{stem}.html": render_page(report, links=links).encode(),
        f"{stem}.json": report_to_json(report).encode(),
    }
    files[f"{stem}.oscal.json"] = render_oscal(report, files).encode()
    contents = {name.removeprefix(stem): content for name, content in files.items()}
    if key is not None:
        contents[SIGNATURE_SUFFIX] = sign_report(files, revision=report.sections.revision.revision, key=key)
    else:
        with suppress(OSError):  # an earlier signature would not fit the new files
            page.with_name(f"{stem}{SIGNATURE_SUFFIX}").unlink(missing_ok=True)
    write_files(page, contents)
    signed = f", signed with key {key.id}" if key is not None else ""
    print_line(stdout(), f"{page}: {report.summary.verdict} Revision {report.sections.revision.revision[:12]}{signed}")
    if key is None:
        print_note("the report is not signed; sign it with --sign KEY")


def _print_summary(report: ReportData) -> None:
    print_line(stdout(), (report.summary.verdict, "bold"))
    for found in report.summary.findings:
        place = "" if found.position is None else f"   {found.position.file}:{found.position.line}"
        print_line(
            stdout(), "  ", (f"{found.grade:6}", _COLOURS[found.grade]), f"  {found.title}: {found.words}{place}"
        )
    print_note("the whole report is written with --output review.html")


def _load_signing_key(path: Path) -> SigningKey:
    try:
        return SigningKey.load(_read_key(path))
    except GatewayError as error:
        fail(error.message, error.help)


def _load_verify_key(path: Path) -> VerifyKey:
    try:
        return VerifyKey.load(_read_key(path))
    except GatewayError as error:
        fail(error.message, error.help)


def _read_key(path: Path) -> bytes:
    try:
        return read_bounded_file(path, _MOST_KEY)
    except (OSError, InvalidReport):
        fail(f"the key {path} cannot be read", "gateway bundle keygen creates one")


def _read_signature_file(stem: Path) -> bytes:
    path = stem.with_name(f"{stem.name}{SIGNATURE_SUFFIX}")
    try:
        return read_bounded_file(path, MOST_SIGNATURE)
    except FileNotFoundError:
        raise InvalidReport(f"there is no signature file {path.name!r}", help="sign a report: --sign KEY") from None
