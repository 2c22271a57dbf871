"""`gateway audit`: whether the decision log is the one that was written, and the log for other systems.

Nothing here connects to anything or changes the log. A log is an exported file, or the database of a gateway, also
while it runs.
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
from gateway.audit.anchors import NoAnchor, SignedAnchor, read_anchors
from gateway.audit.contents import MIN_BYTES, ContentKey
from gateway.audit.exporting import Format, Selection, exported
from gateway.audit.findings import Report
from gateway.audit.keys import PublicKey, SigningKey
from gateway.audit.lines import LineFile
from gateway.audit.verifying import Scope
from gateway.audit.verifying import verify as verify_rows
from gateway.cli.console import err, fail, note, out, print_json, print_line, print_table, write_lines
from gateway.cli.moments import moment
from gateway.errors import GatewayError
from gateway.runtime.engines import postgres
from gateway.storage.audit_rows import AuditRows

Log: TypeAlias = Any
"""Lines of a file, or rows of a database."""

_MAX_KEY = 64 << 10

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Verify and export the decision log.")

LogFile = Annotated[
    Path | None,
    typer.Argument(metavar="FILE", help="A log as exported JSON lines, also gzipped.", show_default=False),
]
Database = Annotated[
    Path | None, typer.Option(help="The database of a gateway, instead of a file.", show_default=False)
]
ConnectionEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The variable that has the connection of a PostgreSQL database.", show_default=False
    ),
]
Moment = datetime | None


@app.command("verify")
def verify(
    file: LogFile = None,
    database: Database = None,
    connection_env: ConnectionEnv = None,
    anchors: Annotated[
        Path | None, typer.Option(help="The file of anchors, from where they were kept.", show_default=False)
    ] = None,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(help="A key that anchors were signed with, as the public file; repeatable.", show_default=False),
    ] = None,
    shard: Annotated[str | None, typer.Option(help="Only this shard.", show_default=False)] = None,
    first: Annotated[
        int, typer.Option("--from", min=1, metavar="SEQ", help="Begin with this entry of every shard.")
    ] = 1,
    last: Annotated[
        int | None,
        typer.Option("--to", min=1, metavar="SEQ", help="End with this entry of every shard.", show_default=False),
    ] = None,
    output: Annotated[
        Literal["text", "json"], typer.Option("--format", "--output", help="For people, or for programs.")
    ] = "text",
) -> None:
    """Verify a log offline, and name the first entry of every shard that is not as it was written.

    Give anchors as well: without them a cut-off end or a log that was written anew as a whole is not noticed.

    Exit codes: 0 good, 1 there is a bad entry, 2 the log, anchors or keys cannot be read, or there are no entries.
    """
    if (anchors is None) != (not public_key):
        fail("anchors are verified with a public key", "give both --anchors and --public-key")
    with _told_plainly():
        keys = [PublicKey.load(_content(path)) for path in public_key or ()]
        known = None if anchors is None else _anchors(anchors)  # before the log: it only grows
        with _opened(file, database, connection_env) as log, _shown_progress(log) as progress:
            report = verify_rows(log, anchors=known, keys=keys, scope=Scope(shard, first, last), progress=progress)
    if output == "json":
        print_json(_data(report))
    else:
        _print(report, has_anchors=anchors is not None)
    if report.findings:
        raise typer.Exit(1)
    if not report.entries:
        fail("there are no entries to verify", "check the path, --shard, --from and --to")


@app.command("export")
def export(
    file: LogFile = None,
    database: Database = None,
    connection_env: ConnectionEnv = None,
    format: Annotated[
        Format, typer.Option(help="JSON lines can be verified again; CEF and OCSF are for SIEMs.")
    ] = "jsonl",
    since: Annotated[
        Moment,
        typer.Option(
            parser=moment, metavar="AGE|MOMENT", help="Only entries since then: 15m, 2h, 3d.", show_default=False
        ),
    ] = None,
    until: Annotated[
        Moment, typer.Option(parser=moment, metavar="AGE|MOMENT", help="Only entries before then.", show_default=False)
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="Only entries about callers of this tenant.", show_default=False)
    ] = None,
    tool: Annotated[
        str | None, typer.Option(help="Only entries about this tool, by either name.", show_default=False)
    ] = None,
) -> None:
    """Print the log for another system, one entry per line, shard by shard.

    A choice of entries is no whole chain any more: verify what was exported without --since, --until, --tenant, --tool.

    Exit codes: 0 exported, 2 the log cannot be read.
    """
    selection = Selection(_microseconds(since), _microseconds(until), tenant, tool)
    if format == "jsonl" and not selection.is_everything:
        note("a choice of entries cannot be verified as a chain; export everything for that")
    with _told_plainly(), _opened(file, database, connection_env) as log:
        write_lines(exported(log, format, version=__version__, selection=selection), are_json=format != "cef")


@app.command("keygen")
def keygen(
    file: Annotated[Path, typer.Argument(help="Where to write the key. Nothing is ever overwritten.")],
    purpose: Annotated[
        Literal["anchors", "contents"],
        typer.Option("--for", help="Signing anchors, or hashing arguments and results."),
    ] = "anchors",
) -> None:
    """Write a new key, readable for its owner only. A key for anchors comes with its public half, in FILE.pub.

    Exit codes: 0 written, 2 a file is there already or cannot be written.
    """
    if purpose == "contents":
        secret = token_bytes(MIN_BYTES).hex()
        write_all([(file, secret.encode() + b"\n", 0o600)])
        print_line(out(), f"key {ContentKey(secret).id} for contents is in {file}")
        return
    key = SigningKey.generate()
    public = file.with_name(f"{file.name}.pub")
    write_all([(file, key.pem(), 0o600), (public, key.public.pem(), 0o644)])
    print_line(out(), f"key {key.id} for anchors is in {file}, its public half in {public}")
    print_line(err(), "Give the public half to whoever verifies, and keep it apart from the log.")


@contextmanager
def _told_plainly() -> Iterator[None]:
    try:
        yield
    except GatewayError as error:
        fail(error.message, error.help)


@contextmanager
def _opened(file: Path | None, database: Path | None, connection_env: str | None) -> Iterator[Log]:
    if sum(each is not None for each in (file, database, connection_env)) != 1:
        fail("name one log to read", "give a FILE, --database PATH, or --connection-env NAME")
    if connection_env is not None:
        address = os.environ.get(connection_env)
        if not address:
            fail(f"the environment variable {connection_env} is not set", "put the connection of the database into it")
        with postgres().PostgresAuditRows(address) as found:
            yield found
    if file is not None:
        if not file.is_file():
            fail(f"there is no file {file}", "gateway audit export writes one; it is read twice, so a pipe will not do")
        yield LineFile(file)
    elif database is not None:
        if not database.is_file():
            fail(
                f"there is no database {database}",
                "run this where the gateway runs: the path is relative to its folder",
            )
        with AuditRows(database) as rows:
            yield rows


@contextmanager
def _shown_progress(log: Log) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal; nothing anywhere else."""
    console = err()
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


def _anchors(path: Path) -> Sequence[SignedAnchor | NoAnchor]:
    try:
        return list(read_anchors(path))
    except OSError as error:
        fail(f"the anchors {path} cannot be read ({error.strerror})", "name the file that the gateway's anchors go to")


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY)
    except OSError as error:
        fail(f"the key {path} cannot be read ({error.strerror})", "name the file that ends in .pub")


def _print(report: Report, *, has_anchors: bool) -> None:
    if report.findings:
        for finding in report.findings:
            line = "" if finding.line is None else f" (line {finding.line})"
            print_line(
                out(),
                ("✗ ", "bold red"),
                (f"{finding.shard}:{finding.seq}", "bold"),
                f" {finding.fault}: {finding.detail}{line}",
            )
    elif report.entries:
        shards = f"{len(report.shards)} shard{'s' if len(report.shards) > 1 else ''}"
        print_line(out(), ("✓ ", "bold green"), f"{report.entries:,} entries in {shards} are as they were written")
    if report.shards:
        columns = ("shard", "from", "to", "anchored to", "hash of the last")
        rows = [
            [each.shard, str(each.first), str(each.last), str(each.anchored or ""), each.head[:16]]
            for each in report.shards
        ]
        print_table(out(), columns, rows)
    for each in report.notes:
        note(each)
    if not has_anchors:
        note("no anchors were given: a cut-off end, or a log that was written anew, would not be noticed")
    elif report.unanchored:
        note(f"entries after the last anchor of their shard, not confirmed by any yet: {report.unanchored:,}")


def _data(report: Report) -> dict[str, Any]:
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
    """All of them or none, and only where nothing is."""
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
        fail(
            f"{error.filename or files[0][0]} cannot be written ({error.strerror})", "name a file that is not there yet"
        )
