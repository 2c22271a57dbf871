"""`gateway status` and `gateway reload`, through the admin plane of a running gateway."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NoReturn

import typer

from gateway.cli.client import GatewayClient, GatewayRefusal, connect
from gateway.cli.options import DEFAULT_ADMIN_URL, AdminUrlOption, InsecureOption, OutputOption, TokenFileOption
from gateway.cli.output import fail, print_json, print_line, print_pairs, stderr, stdout

_RELOAD_SECONDS: Final = 300


def show_status(
    url: AdminUrlOption = DEFAULT_ADMIN_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOption = "text",
) -> None:
    """Show what a running gateway serves: its revision, since when, the last reload, and what deserves attention.

    Exit codes: 0 shown, 1 the gateway does not answer or refuses.
    """
    status = fetch_status(connect(url, token_file, insecure=insecure))
    if output == "json":
        print_json(status)
        return
    print_pairs(stdout(), format_status(status))
    for warning in status.get("warnings", ()):
        print_line(stdout(), ("warning: ", "yellow"), str(warning))


def reload_gateway(
    url: AdminUrlOption = DEFAULT_ADMIN_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    revision: Annotated[
        str | None, typer.Option("--if-revision", metavar="REVISION", help="Only if this revision is served now.")
    ] = None,
    output: OutputOption = "text",
) -> None:
    """Make a running gateway reload its folder or its bundle.

    Exit codes: 0 all its processes serve the current revision; 1 the reload was refused and the earlier revision stays,
    or a process does not serve the new one yet; 2 wrong use.
    """
    remote = connect(url, token_file, insecure=insecure)
    headers = {"If-Match": f'"{revision}"'} if revision else {}
    try:
        status = remote.post("/admin/reload", {}, headers=headers, seconds=_RELOAD_SECONDS)
    except GatewayRefusal as refused:
        status = refused.problem
        if "outcome" not in status:
            exit_with_refusal(refused, remote)
    if output == "json":
        print_json(status)
    else:
        print_line(stdout(), _format_outcome(status))
        for problem in status["problems"]:
            print_line(stderr(), ("error: ", "bold red"), str(problem))
    if status["outcome"] == "refused" or status["problems"]:
        raise typer.Exit(1)


def fetch_status(remote: GatewayClient) -> Mapping[str, Any]:
    try:
        status = remote.get("/status")
    except GatewayRefusal as refused:
        exit_with_refusal(refused, remote)
    if not isinstance(status, dict) or "revision" not in status:
        _fail_wrong_server(remote)
    return status


def exit_with_refusal(refused: GatewayRefusal, remote: GatewayClient) -> NoReturn:
    """End the command with the reason of a refusal, or because the server is no admin plane."""
    if refused.status == 404:
        _fail_wrong_server(remote)
    if refused.status == 401:
        help = "give a valid token with --token-file, or in the variable GATEWAY_TOKEN"
        fail("the gateway does not accept the token", help, code=1)
    fail(refused.detail, refused.help, code=1)


def _fail_wrong_server(remote: GatewayClient) -> NoReturn:
    help = "give the URL of the admin plane with --url; its default port is 8081"
    fail(f"the server at {remote.url} is not the admin plane of a gateway", help, code=1)


def _format_outcome(status: Mapping[str, Any]) -> str:
    revision = str(status["revision"])[:12]
    if status["outcome"] == "refused":
        return f"refused; revision {revision} is still served"
    return f"{status['outcome']}: revision {revision}"


def format_status(status: Mapping[str, Any]) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield the names and texts of a status, for people."""
    yield "gateway", str(status["name"])
    yield "revision", f"{status['revision'][:12]} since {status.get('since', '?')}"
    source = status.get("source") or {}
    yield (
        "source",
        ", ".join(f"{key} {value}" for key, value in source.items() if key != "digest" and value is not None),
    )
    yield "last reload", _format_reload(status.get("lastReload"))
    yield "processes", _format_processes(status)
    catalogues = [f"{each['name']} ({each['tools']} tools)" for each in status["catalogues"]]
    yield "catalogues", ", ".join(catalogues)
    yield "running calls", str(status["runningCalls"])
    if requests := status.get("requests"):
        yield (
            "requests",
            f"{requests['active']} active, {requests['waiting']} waiting, {requests['refused']} refused",
        )
    yield "storage", ", ".join(_format_storage(status["storage"]))
    if refusals := status.get("refusals"):
        yield "refused calls", tuple(map(_format_refusal, refusals.items()))
    upstreams = [f"{each['name']} {each['state']}" for each in status["upstreams"]]
    yield "upstreams", ", ".join(upstreams) or "none"
    if withheld := status.get("withheld"):
        yield "withheld", tuple(f"{each['upstream']}.{each['tool']}: {each['because']}" for each in withheld)
    grants = status.get("grants") or {}
    if problem := grants.get("problem"):
        yield "grants", f"none is in force: {problem}"
    elif in_force := grants.get("inForce"):
        yield "grants", tuple(f"{each['role']} for {each['subject']} until {each['until']}" for each in in_force)
    if collisions := status.get("collisions"):
        yield "collisions", tuple(map(_format_collision, collisions))


def _format_refusal(of_reason: tuple[str, Mapping[str, int]]) -> str:
    reason, counts = of_reason
    return f"{reason}: {counts['recorded']:,} recorded, {counts['counted']:,} more counted"


def _format_collision(row: Mapping[str, Any]) -> str:
    wanted = f"{row['catalogue']}: {row['kind']} {row['name']} of {row['existing']} and {row['incoming']}"
    return f"{wanted}: {row['outcome']}, {row['reason']}"


def _format_processes(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the number of processes, and each that does not serve the revision of the one that answers."""
    others = [
        f"worker {index} {'does not answer' if revision is None else f'serves revision {revision[:12]}'}"
        for index, revision in status.get("revisions", {}).items()
        if revision != status["revision"]
    ]
    return (str(status["workers"]), *others)


def _format_storage(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sizes. A database that cannot be reached has none, and a bucket is not counted."""
    size = status.get("databaseBytes")
    yield "records cannot be reached" if size is None else f"{size:,} bytes of records"
    yield (
        f"results in bucket {status['spoolBucket']}"
        if "spoolBucket" in status
        else f"{status['spoolBytes']:,} of results"
    )


def _format_reload(reload: Mapping[str, Any] | None) -> tuple[str, ...]:
    if reload is None:
        return ("none since the start",)
    return (f"{reload['outcome']} at {reload['at']}", *map(str, reload["problems"]))
