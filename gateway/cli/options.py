"""Options and arguments that several commands share, each declared once for typer.

This module imports little, so that commands which only talk to a running gateway start fast.
"""

import re
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from gateway.cli.output import parse_time

DEFAULT_FOLDER: Final = Path()
DEFAULT_URL: Final = "http://127.0.0.1:8080"
DEFAULT_ADMIN_URL: Final = "http://127.0.0.1:8081"
TOKEN_VARIABLE: Final = "GATEWAY_TOKEN"  # noqa: S105 - the name of a variable, not a token

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PROJECT_HELP: Final = "The project: a folder with configs and policies, or configs itself."
_OUTPUT_HELP: Final = "For people, or for programs."


def parse_day(text: str | date) -> date:
    try:
        return text if isinstance(text, date) else date.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter("write a day as 2026-11-16") from None


def parse_duration(text: str | timedelta) -> timedelta:
    if isinstance(text, timedelta):
        return text
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None or not int(found[1]):
        raise typer.BadParameter("write a time as 30s, 15m, 2h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


# The project.
FolderArgument = Annotated[Path, typer.Argument(help=_PROJECT_HELP)]
ProjectOption = Annotated[Path, typer.Option("--project", "-p", help=_PROJECT_HELP)]
PoliciesOption = Annotated[
    Path | None, typer.Option(help="The folder of policies, if it is not the one beside configs.", show_default=False)
]
EnvironmentOption = Annotated[
    str | None, typer.Option(envvar="GATEWAY_ENVIRONMENT", help="Apply the overlay of this environment.")
]
DayOption = Annotated[
    date | None,
    typer.Option("--on", parser=parse_day, metavar="DAY", help="As of this day instead of today.", show_default=False),
]
UpstreamsOption = Annotated[
    list[str] | None,
    typer.Option("--upstream", "-u", help="Only this upstream; may be given again.", show_default=False),
]
BundleKeysOption = Annotated[
    list[Path] | None,
    typer.Option("--key", help="A public key that the bundle may be signed with; may be given again."),
]
KeyFileArgument = Annotated[Path, typer.Argument(help="Where to write the key. An existing file is never overwritten.")]

# The caller in question.
CallerOption = Annotated[
    str | None, typer.Option("--as", metavar="SUBJECT", help="As this caller: user:ana.", show_default=False)
]
RolesOption = Annotated[
    list[str] | None,
    typer.Option("--role", metavar="ROLE", help="A role of the caller; may be given again.", show_default=False),
]

# Records and databases.
DatabaseOption = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="The SQLite file of a gateway; no configuration is read.", show_default=False),
]
ConnectionEnvOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The variable that holds the connection of a PostgreSQL database; no configuration is read.",
        show_default=False,
    ),
]
CallIdArgument = Annotated[str, typer.Argument(metavar="CALL_ID", help="The call's id.")]
TurnOption = Annotated[
    str | None, typer.Option(help="The call's turn, if several turns have a call of that id.", show_default=False)
]
SinceOption = Annotated[
    datetime | None,
    typer.Option(
        parser=parse_time, metavar="AGE|MOMENT", help="Only records since then: 15m, 2h, 3d.", show_default=False
    ),
]

# Changes that an operator makes.
ReasonOption = Annotated[str, typer.Option(help="Why, in one line; it is recorded.")]
DurationOption = Annotated[
    timedelta | None,
    typer.Option(
        "--for", parser=parse_duration, metavar="TIME", help="How long: 30s, 15m, 2h, 7d.", show_default=False
    ),
]
OperatorOption = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Your name, recorded beside the user of this machine.")
]

# A running gateway.
UrlOption = Annotated[
    str, typer.Option("--url", envvar="GATEWAY_URL", help="The URL of the gateway.", metavar="URL", show_default=True)
]
AdminUrlOption = Annotated[
    str,
    typer.Option(
        "--url", envvar="GATEWAY_ADMIN_URL", help="The URL of its admin plane.", metavar="URL", show_default=True
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(help=f"A file with your token; without it, the variable {TOKEN_VARIABLE}.", show_default=False),
]
InsecureOption = Annotated[bool, typer.Option("--insecure", help="Send the token over plain HTTP to another host.")]

# The form of the output.
OutputOption = Annotated[Literal["text", "json"], typer.Option("--output", help=_OUTPUT_HELP)]
OutputOrFormatOption = Annotated[Literal["text", "json"], typer.Option("--output", "--format", help=_OUTPUT_HELP)]
