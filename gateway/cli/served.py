"""`gateway status` and `gateway reload`: a running gateway, asked on its admin plane."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, NoReturn

import typer

from gateway.cli.console import err, fail, out, print_json, print_line, print_pairs
from gateway.cli.remote import Answered, Insecure, Remote, TokenFile, remote_at

DEFAULT_URL: Final = "http://127.0.0.1:8081"
_RELOAD_SECONDS: Final = 300

AdminUrl = Annotated[
    str,
    typer.Option(
        "--url", envvar="GATEWAY_ADMIN_URL", help="Where its admin plane is.", metavar="URL", show_default=True
    ),
]
Output = Annotated[Literal["text", "json"], typer.Option(help="For people, or for programs.")]


def show_status(
    url: AdminUrl = DEFAULT_URL, token_file: TokenFile = None, insecure: Insecure = False, output: Output = "text"
) -> None:
    """Show what a running gateway serves: its revision, since when, the last reload, and what deserves attention.

    Exit codes: 0 told, 1 it cannot be asked.
    """
    told = served_status(remote_at(url, token_file, insecure=insecure))
    if output == "json":
        print_json(told)
        return
    print_pairs(out(), status_pairs(told))
    for warning in told.get("warnings", ()):
        print_line(out(), ("warning: ", "yellow"), str(warning))


def reload_gateway(
    url: AdminUrl = DEFAULT_URL,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    revision: Annotated[
        str | None, typer.Option("--if-revision", metavar="REVISION", help="Only if this one is served now.")
    ] = None,
    output: Output = "text",
) -> None:
    """Have a running gateway serve what its folder, or its bundle, holds now.

    Exit codes: 0 it does, or did already, in all its processes; 1 it was refused, and the earlier revision stays, or a
    process does not serve it yet; 2 wrong use.
    """
    remote = remote_at(url, token_file, insecure=insecure)
    headers = {"If-Match": f'"{revision}"'} if revision else {}
    try:
        told = remote.post("/admin/reload", {}, headers=headers, seconds=_RELOAD_SECONDS)
    except Answered as refused:
        told = refused.problem
        if "outcome" not in told:
            fail_refused(refused, remote)
    if output == "json":
        print_json(told)
    else:
        print_line(out(), _outcome(told))
        for problem in told["problems"]:
            print_line(err(), ("error: ", "bold red"), str(problem))
    if told["outcome"] == "refused" or told["problems"]:
        raise typer.Exit(1)


def served_status(remote: Remote) -> Mapping[str, Any]:
    try:
        told = remote.get("/status")
    except Answered as refused:
        fail_refused(refused, remote)
    if not isinstance(told, dict) or "revision" not in told:
        _fail_elsewhere(remote)
    return told


def fail_refused(refused: Answered, remote: Remote) -> NoReturn:
    """End the command with what a refusal of an admin plane means, or of what is none."""
    if refused.status == 404:
        _fail_elsewhere(remote)
    if refused.status == 401:
        help = "give one that is valid there with --token-file, or in the variable GATEWAY_TOKEN"
        fail("the gateway does not accept the token", help, code=1)
    fail(refused.detail, refused.help, code=1)


def _fail_elsewhere(remote: Remote) -> NoReturn:
    help = "say with --url where that is; unless it was told otherwise, on port 8081"
    fail(f"what answers at {remote.url} is not the admin plane of a gateway", help, code=1)


def _outcome(told: Mapping[str, Any]) -> str:
    revision = str(told["revision"])[:12]
    if told["outcome"] == "refused":
        return f"refused; revision {revision} is still served"
    return f"{told['outcome']}: revision {revision}"


def status_pairs(told: Mapping[str, Any]) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """What people are shown of a status."""
    yield "gateway", str(told["name"])
    yield "revision", f"{told['revision'][:12]} since {told.get('since', '?')}"
    source = told.get("source") or {}
    yield (
        "source",
        ", ".join(f"{key} {value}" for key, value in source.items() if key != "digest" and value is not None),
    )
    yield "last reload", _last(told.get("lastReload"))
    yield "processes", _processes(told)
    catalogues = [f"{each['name']} ({each['tools']} tools)" for each in told["catalogues"]]
    yield "catalogues", ", ".join(catalogues)
    yield "running calls", str(told["runningCalls"])
    if requests := told.get("requests"):
        yield (
            "requests",
            f"{requests['active']} worked on, {requests['waiting']} waiting, {requests['refused']} refused",
        )
    yield "storage", ", ".join(_storage(told["storage"]))
    if refusals := told.get("refusals"):
        yield "refused calls", tuple(map(_refused, refusals.items()))
    upstreams = [f"{each['name']} {each['state']}" for each in told["upstreams"]]
    yield "upstreams", ", ".join(upstreams) or "none"
    if withheld := told.get("withheld"):
        yield "withheld", tuple(f"{each['upstream']}.{each['tool']}: {each['because']}" for each in withheld)
    if collisions := told.get("collisions"):
        yield "collisions", tuple(map(_collision, collisions))


def _refused(of_reason: tuple[str, Mapping[str, int]]) -> str:
    reason, counts = of_reason
    return f"{reason}: {counts['recorded']:,} recorded, {counts['counted']:,} more counted"


def _collision(row: Mapping[str, Any]) -> str:
    wanted = f"{row['catalogue']}: {row['kind']} {row['name']} of {row['existing']} and {row['incoming']}"
    return f"{wanted}: {row['outcome']}, {row['reason']}"


def _processes(told: Mapping[str, Any]) -> tuple[str, ...]:
    """With those that serve something else than the one that answers."""
    apart = [
        f"worker {index} {'does not answer' if revision is None else f'serves revision {revision[:12]}'}"
        for index, revision in told.get("revisions", {}).items()
        if revision != told["revision"]
    ]
    return (str(told["workers"]), *apart)


def _storage(told: Mapping[str, Any]) -> Iterator[str]:
    """A database that cannot be reached has no size, and nobody counts what is in a bucket."""
    size = told.get("databaseBytes")
    yield "records cannot be reached" if size is None else f"{size:,} bytes of records"
    yield f"results in bucket {told['spoolBucket']}" if "spoolBucket" in told else f"{told['spoolBytes']:,} of results"


def _last(reload: Mapping[str, Any] | None) -> tuple[str, ...]:
    if reload is None:
        return ("none since the start",)
    return (f"{reload['outcome']} at {reload['at']}", *map(str, reload["problems"]))
