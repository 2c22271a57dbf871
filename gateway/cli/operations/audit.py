"""`gateway audit`: verify the decision log, export it for other systems, and create keys.

A log is an exported file or the database of a gateway, which may be running. No command changes the log.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_bytes
from typing import Annotated, Any, Literal, TypeAlias

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from gateway import __version__
from gateway.app import load_postgres
from gateway.audit import (
    MIN_BYTES,
    ContentKey,
    ExportFilter,
    Format,
    InvalidAnchorLine,
    JsonLinesLog,
    SignedAnchor,
    SigningKey,
    VerificationReport,
    VerificationScope,
    VerifyKey,
    export_entries,
    read_anchors,
)
from gateway.audit import verify as verify_rows
from gateway.cli.options import ConnectionEnvOption, DatabaseOption, KeyFileArgument, OutputOrFormatOption, SinceOption
from gateway.cli.output import (
    fail,
    parse_time,
    print_json,
    print_line,
    print_note,
    print_table,
    stderr,
    stdout,
    write_lines,
)
from gateway.errors import GatewayError
from gateway.storage import SqliteAuditReader

Log: TypeAlias = Any
"""Lines of a file, or rows of a database."""

_MAX_KEY = 64 << 10

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Verify and export the decision log.")

LogFile = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="A log as exported JSON lines, also gzipped.", show_default=False),
]


@app.command("verify")
def verify(
    file: LogFile = None,
    database: DatabaseOption = None,
    connection_env: ConnectionEnvOption = None,
    anchors: Annotated[Path | None, typer.Option(help="The file of anchors.", show_default=False)] = None,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(help="The public key of anchors; may be given again.", show_default=False),
    ] = None,
    shard: Annotated[str | None, typer.Option(help="Only this shard.", show_default=False)] = None,
    first: Annotated[
        int, typer.Option("--from", min=1, metavar="SEQ", help="Begin with this entry of every shard.")
    ] = 1,
    last: Annotated[
        int | None,
        typer.Option("--to", min=1, metavar="SEQ", help="End with this entry of every shard.", show_default=False),
    ] = None,
    output: OutputOrFormatOption = "text",
) -> None:
    """Verify a log offline, and name the first altered entry of every shard.

    Give anchors as well: without them, a truncated or completely rewritten log is not detected.

    Exit codes: 0 good, 1 there is a bad entry, 2 the log, anchors or keys cannot be read, or there are no entries.
    """
    if (anchors is None) != (not public_key):
        fail("anchors and public keys go together", "give both --anchors and --public-key")
    with _fail_on_error():
        keys = [VerifyKey.load(_read_key(path)) for path in public_key or ()]
        known = None if anchors is None else _read_anchors(anchors)  # before the log, which only grows
        with _open_log(file, database, connection_env) as log, _show_progress(log) as progress:
            report = verify_rows(
                log, anchors=known, keys=keys, scope=VerificationScope(shard, first, last), progress=progress
            )
    if output == "json":
        print_json(_to_data(report))
    else:
        _print(report, has_anchors=anchors is not None)
    if report.findings:
        raise typer.Exit(1)
    if not report.entries:
        fail("there are no entries to verify", "check the path, --shard, --from and --to")


@app.command("export")
def export(
    file: LogFile = None,
    database: DatabaseOption = None,
    connection_env: ConnectionEnvOption = None,
    format: Annotated[
        Format, typer.Option(help="JSON lines can be verified again; CEF and OCSF are for SIEMs.")
    ] = "jsonl",
    since: SinceOption = None,
    until: Annotated[
        datetime | None,
        typer.Option(parser=parse_time, metavar="AGE|MOMENT", help="Only entries before then.", show_default=False),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only entries about callers of this tenant.", show_default=False)
    ] = None,
    tool: Annotated[
        str | None, typer.Option(help="Only entries about this tool, by either name.", show_default=False)
    ] = None,
) -> None:
    """Print the log for another system, one entry per line, shard by shard.

    Only a complete export can be verified again: one without --since, --until, --tenant and --tool.

    Exit codes: 0 exported, 2 the log cannot be read.
    """
    selection = ExportFilter(_microseconds(since), _microseconds(until), tenant, tool)
    if format == "jsonl" and not selection.is_everything:
        print_note("a filtered export cannot be verified as a chain; export everything for that")
    with _fail_on_error(), _open_log(file, database, connection_env) as log:
        write_lines(export_entries(log, format, version=__version__, selection=selection), are_json=format != "cef")


@app.command("keygen")
def keygen(
    file: KeyFileArgument,
    purpose: Annotated[
        Literal["anchors", "contents"],
        typer.Option("--for", help="Signing anchors, or hashing arguments and results."),
    ] = "anchors",
) -> None:
    """Write a new key that only its owner can read. The public half of a key for anchors goes to FILE.pub.

    Exit codes: 0 written, 2 a file exists already or cannot be written.
    """
    if purpose == "contents":
        secret = token_bytes(MIN_BYTES).hex()
        write_all([(file, secret.encode() + b"\n", 0o600)])
        print_line(stdout(), f"key {ContentKey(secret).id} for contents is in {file}")
        return
    key = SigningKey.generate()
    public = file.with_name(f"{file.name}.pub")
    write_all([(file, key.pem(), 0o600), (public, key.public.pem(), 0o644)])
    print_line(stdout(), f"key {key.id} for anchors is in {file}, its public half in {public}")
    print_line(stderr(), "Give the public half to the people who verify the log, and store it apart from the log.")


@contextmanager
def _fail_on_error() -> Iterator[None]:
    try:
        yield
    except GatewayError as error:
        fail(error.message, error.help)


@contextmanager
def _open_log(file: Path | None, database: Path | None, connection_env: str | None) -> Iterator[Log]:
    if sum(each is not None for each in (file, database, connection_env)) != 1:
        fail("name one log to read", "give a FILE, --database PATH, or --connection-env NAME")
    if connection_env is not None:
        address = os.environ.get(connection_env)
        if not address:
            fail(f"the environment variable {connection_env} is not set", "set it to the connection of the database")
        with load_postgres().PostgresAuditReader(address) as found:
            yield found
    if file is not None:
        if not file.is_file():
            fail(f"there is no file {file}", "gateway audit export writes one; a pipe cannot be read twice")
        yield JsonLinesLog(file)
    elif database is not None:
        if not database.is_file():
            fail(
                f"there is no database {database}",
                "run this in the folder where the gateway runs: the path is relative to it",
            )
        with SqliteAuditReader(database) as rows:
            yield rows


@contextmanager
def _show_progress(log: Log) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar, on a terminal only."""
    console = stderr()
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("verifying"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[entries]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("verifying", total=1.0, entries="")
        yield lambda entries: progress.update(task, completed=log.fraction(), entries=f"{entries:,} entries")


def _read_anchors(path: Path) -> Sequence[SignedAnchor | InvalidAnchorLine]:
    try:
        return list(read_anchors(path))
    except OSError as error:
        fail(
            f"the anchors {path} cannot be read ({error.strerror})", "name the file that the gateway writes anchors to"
        )


def _read_key(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY)
    except OSError as error:
        fail(f"the key {path} cannot be read ({error.strerror})", "name the file that ends in .pub")


def _print(report: VerificationReport, *, has_anchors: bool) -> None:
    if report.findings:
        for finding in report.findings:
            line = "" if finding.line is None else f" (line {finding.line})"
            print_line(
                stdout(),
                ("✗ ", "bold red"),
                (f"{finding.shard}:{finding.seq}", "bold"),
                f" {finding.fault}: {finding.detail}{line}",
            )
    elif report.entries:
        shards = f"{len(report.shards)} shard{'s' if len(report.shards) > 1 else ''}"
        print_line(stdout(), ("✓ ", "bold green"), f"{report.entries:,} entries in {shards} are unaltered")
    if report.shards:
        columns = ("shard", "from", "to", "anchored to", "hash of the last")
        rows = [
            [each.shard, str(each.first), str(each.last), str(each.anchored or ""), each.head[:16]]
            for each in report.shards
        ]
        print_table(stdout(), columns, rows)
    for each in report.notes:
        print_note(each)
    if not has_anchors:
        print_note("no anchors were given: a truncated or completely rewritten log would not be detected")
    elif report.unanchored:
        print_note(f"entries after the last anchor of their shard, not confirmed yet: {report.unanchored:,}")


def _to_data(report: VerificationReport) -> dict[str, Any]:
    findings = [{name: value for name, value in asdict(each).items() if value is not None} for each in report.findings]
    return {
        "good": report.is_good and report.entries > 0,
        "entries": report.entries,
        "anchors": report.anchors,
        "unanchored": report.unanchored,
        "findings": findings,
        "shards": [asdict(each) for each in report.shards],
        "notes": list(report.notes),
    }


def _microseconds(at: datetime | None) -> int | None:
    return None if at is None else (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def write_all(files: Sequence[tuple[Path, bytes, int]]) -> None:
    """Write all files or none; never overwrite one."""
    written: list[Path] = []
    try:
        for path, content, mode in files:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            written.append(path)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
    except OSError as error:
        for path in written:
            path.unlink()
        fail(f"{error.filename or files[0][0]} cannot be written ({error.strerror})", "name a file that does not exist")
