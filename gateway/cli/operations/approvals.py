"""`gateway approvals`: show approvals in full, and decide them as the subject of the token."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote

import typer

from gateway.cli.client import GatewayClient, GatewayRefusal, connect
from gateway.cli.options import DEFAULT_URL, InsecureOption, OutputOrFormatOption, TokenFileOption, UrlOption
from gateway.cli.output import fail, format_time, print_json, print_line, print_note, print_pairs, print_table, stdout
from gateway.config import escape_invisible
from gateway.server import NotStrictJson, strict_json

T = TypeVar("T")

_COLUMNS: Final = (
    *("approval", "state", "stale", "tool", "requester", "arguments", "reason", "agreed", "asked", "expires", "decide"),
)
_COLOURS: Final = {
    **{"pending": "cyan", "granted": "green", "refused": "yellow", "expired": "yellow", "void": "bold red"},
    "yes": "yellow",
}
_PAIRS: Final = ("id", "state", "tool", "catalogue", "requester", "reason", "rule", "ruleAt", "createdAt", "expiresAt")
_UNKNOWN: Final = "E_UNKNOWN_APPROVAL"
_MORE: Final = ("identity", "definition", "revision", "digest", "callId", "decidedAt", "usedAt", "reuseUntil")
_MOMENTS: Final = frozenset({"createdAt", "expiresAt", "decidedAt", "usedAt", "reuseUntil"})
_SHORT_REVISION: Final = 12
_VERBS: Final = {"grant": "resolve", "refuse": "reject"}

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Show approvals and decide them.", rich_markup_mode=None
)

ApprovalArgument = Annotated[str, typer.Argument(help="The approval's id.")]
NoteOption = Annotated[
    str | None, typer.Option(help="A note for the requester, which is recorded.", show_default=False)
]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
ShownDigestOption = Annotated[
    str | None,
    typer.Option(help="Decide only if this is still the shownDigest that `show` prints.", show_default=False),
]


@app.command("list")
def list_approvals(
    state: Annotated[
        Literal["pending", "granted", "refused", "expired", "used", "void", "withdrawn", "any"],
        typer.Option(help="Only approvals in this state."),
    ] = "pending",
    role: Annotated[
        Literal["approver", "requester"] | None,
        typer.Option(help="Only those that you may decide, or that you requested.", show_default=False),
    ] = None,
    tool: Annotated[str | None, typer.Option(help="Only approvals of this tool.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most, newest first.")] = 50,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOrFormatOption = "text",
) -> None:
    """List approvals that you may decide or requested, newest first.

    A stale approval was requested under a revision that is no longer served: it cannot be granted or used.

    Exit codes: 0 listed, 1 the gateway cannot be reached or refuses, 2 wrong use.
    """
    remote = connect(url, token_file, insecure=insecure)
    found = _ask(lambda: list(_pages(remote, limit, state=state, role=role, tool=tool)))
    if output == "json":
        print_json(found)
        return
    if not found:
        print_note("no approval is pending" if state == "pending" else "no approval matches")
        return
    print_table(stdout(), _COLUMNS, [_row(each) for each in found], colours=_COLOURS)


@app.command("show")
def show_approval(
    id: ApprovalArgument,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOrFormatOption = "text",
) -> None:
    """Show everything about an approval: who requests it, why, and every argument with hidden characters escaped.

    Exit codes: 0 shown, 1 there is no such approval or no gateway, 2 wrong use.
    """
    _print_approval(_fetch(connect(url, token_file, insecure=insecure), id), output)


@app.command("grant")
def grant(
    id: ApprovalArgument,
    note: NoteOption = None,
    resolution: Annotated[
        str | None, typer.Option(help="The answer that the rule asks the approver for, as JSON.", show_default=False)
    ] = None,
    yes: YesOption = False,
    shown_digest: ShownDigestOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOrFormatOption = "text",
) -> None:
    """Grant an approval after showing it. The digest of what was shown is stored with your decision.

    A stale approval cannot be granted: the requester has to call again.

    Exit codes: 0 done, 1 not done, 2 wrong use.
    """
    body = {} if resolution is None else {"resolution": _parse_json(resolution)}
    remote = connect(url, token_file, insecure=insecure)
    _decide(remote, id, "grant", {**body, **_note_body(note)}, yes=yes, shown_digest=shown_digest, output=output)


@app.command("refuse")
def refuse(
    id: ApprovalArgument,
    note: NoteOption = None,
    yes: YesOption = False,
    shown_digest: ShownDigestOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOrFormatOption = "text",
) -> None:
    """Refuse an approval. This ends it, even if others granted it.

    Exit codes: 0 done, 1 not done, 2 wrong use.
    """
    remote = connect(url, token_file, insecure=insecure)
    _decide(remote, id, "refuse", _note_body(note), yes=yes, shown_digest=shown_digest, output=output)


@app.command("watch")
def watch(
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two polls.")] = 2.0,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many polls.", show_default=False)] = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenFileOption = None,
    insecure: InsecureOption = False,
    output: OutputOrFormatOption = "text",
) -> None:
    """Print approvals as they become pending for you and as they end, until you press Ctrl-C.

    Exit codes: 0 stopped as asked, 1 the gateway cannot be reached or refuses, 2 wrong use.
    """
    remote = connect(url, token_file, insecure=insecure)
    waiting: dict[str, Any] = {}
    try:
        for _ in _poll(every, rounds):
            now = {each["id"]: each for each in _ask(lambda: list(_pages(remote, 1000, state="pending")))}
            gone = [each for each in waiting if each not in now]
            ended = [each for each in map(partial(_fetch_ended, remote), gone) if each is not None]
            for found in [*ended, *(now[each] for each in reversed(now) if now[each] != waiting.get(each))]:
                _print_update(found, output)
            waiting = now
    except KeyboardInterrupt:
        return


def _poll(every: float, rounds: int | None) -> Iterator[int]:
    done = 0
    while True:
        yield done
        done += 1
        if done == rounds:
            return
        time.sleep(every)


def _fetch_ended(remote: GatewayClient, id: str) -> dict[str, Any] | None:
    """Return an approval that is no longer pending, or `None` if the caller may no longer see it."""

    def fetch() -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = remote.get(_path(id))
        except GatewayRefusal as refusal:
            if refusal.code != _UNKNOWN:
                raise
            return None
        return found

    return _ask(fetch)


def _pages(remote: GatewayClient, limit: int, **wanted: Any) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while limit > 0:
        page = remote.get("/v1/approvals", **wanted, limit=min(limit, 200), cursor=cursor)
        yield from page["approvals"]
        limit -= len(page["approvals"])
        cursor = page.get("next")
        if cursor is None:
            return


def _fetch(remote: GatewayClient, id: str) -> dict[str, Any]:
    found: dict[str, Any] = _ask(lambda: remote.get(_path(id)), id=id)
    return found


def _decide(
    remote: GatewayClient,
    id: str,
    vote: Literal["grant", "refuse"],
    body: dict[str, Any],
    *,
    yes: bool,
    shown_digest: str | None,
    output: str,
) -> None:
    found = _fetch(remote, id)
    if not yes and shown_digest is None:
        if obstacle := found.get("mayNot", {}).get(vote):
            fail(obstacle, code=1)
        _confirm(found, "Approve exactly this?" if vote == "grant" else "Refuse it?")
    digest = shown_digest or found["shownDigest"]
    decided = _ask(lambda: remote.post(f"{_path(id)}/{_VERBS[vote]}", {**body, "shownDigest": digest}), id=id)
    if output == "json":
        print_json(decided)
        return
    print_line(stdout(), f"{decided['tool']} for {decided['requester']}: ", (decided["state"], _colour(decided)))
    if decided["state"] == "pending":
        print_note(f"{decided['granted']} of {decided['needed']} agreed so far")


def _confirm(found: dict[str, Any], question: str) -> None:
    _print_approval(found, "text")
    try:
        agreed = typer.confirm(escape_invisible(question), default=False, err=True)
    except typer.Abort:
        fail("no answer was given", "look at it with `gateway approvals show`, then give --yes", code=1)
    if not agreed:
        fail("nothing was decided", code=1)


def _print_approval(found: dict[str, Any], output: str) -> None:
    if output == "json":
        print_json(found)
        return
    agreed = f"{found['granted']} of {found['needed']}, by {', '.join(found['approvers'])}"
    pairs = [(name, _value(found, name)) for name in _PAIRS] + [("agreed", agreed)]
    print_pairs(stdout(), pairs + [(name, _value(found, name)) for name in _MORE if name in found])
    for entry in found["entries"]:
        note = f": {entry['note']}" if "note" in entry else ""
        print_line(stdout(), f"{entry['approver']} decided {entry['decision']} at {_moment(entry['at'])}{note}")
    if found.get("stale"):
        print_line(stdout(), (_stale_text(found), "bold yellow"))
    print_line(stdout(), "")
    print_line(stdout(), ("arguments, as the caller sent them; their content is not verified", "bold"))
    for argument in found["arguments"]:
        _print_argument(argument)
    if found["leftOut"]:
        print_line(stdout(), (f"{found['leftOut']} more that the rule does not show", "yellow"))
    if "resolutionSchema" in found:
        print_line(stdout(), f"answer with --resolution, as {json.dumps(found['resolutionSchema'])}")


def _print_argument(argument: dict[str, Any]) -> None:
    unseen = argument["unseen"]
    hidden = (f"   {unseen} invisible characters", "bold red") if unseen else ""
    print_line(stdout(), "  ", (argument["name"], "cyan"), hidden)
    for line in argument["value"].split("\n"):
        print_line(stdout(), f"    {line}")


def _print_update(found: dict[str, Any], output: str) -> None:
    if output == "json":
        print_json(found, indent=None)
        return
    requested, until = f"asked {_value(found, 'createdAt')}", f"until {_value(found, 'expiresAt')}"
    cells = [*_texts(found, "tool", "requester", "excerpt", "reason"), _count_grants(found), requested, until]
    words = "".join(f"  {cell}" for cell in cells if cell)
    stale = ("  stale", "yellow") if found.get("stale") else ""
    print_line(stdout(), f"{found['id']}  ", (found["state"], _colour(found)), stale, words)


def _ask(request: Callable[[], T], *, id: str | None = None) -> T:
    """Return the response. End the command if the gateway refuses the request."""
    try:
        return request()
    except GatewayRefusal as refusal:
        if refusal.status == 401:
            fail("the gateway does not accept the token", "give a valid token with --token-file", code=1)
        if refusal.code == _UNKNOWN:
            help = "gateway approvals list --state any shows what you may see"
            fail(f"there is no approval {id!r} for you", help, code=1)
        if refusal.status == 404:
            fail("this gateway serves no approvals", "check --url", code=1)
        fail(refusal.detail, refusal.help, code=1)  # the detail includes all errors


def _row(found: dict[str, Any]) -> list[str]:
    about = _texts(found, "tool", "requester", "excerpt", "reason")
    moments = (_value(found, "createdAt"), _value(found, "expiresAt"))
    stale = "yes" if found.get("stale") else ""
    return [*_texts(found, "id", "state"), stale, *about, _count_grants(found), *moments, _may_decide(found)]


def _texts(found: dict[str, Any], *names: str) -> list[str]:
    return [str(found.get(name, "")) for name in names]


def _value(found: dict[str, Any], name: str) -> str:
    return _moment(found[name]) if name in _MOMENTS else str(found[name])


def _moment(text: str) -> str:
    return format_time(datetime.fromisoformat(text))


def _may_decide(found: dict[str, Any]) -> str:
    if not found["mayDecide"]:
        return ""
    return "you, to refuse" if found.get("stale") else "you"


def _stale_text(found: dict[str, Any]) -> str:
    asked_under, served = (str(found[name])[:_SHORT_REVISION] for name in ("revision", "servedRevision"))
    return f"stale: requested under revision {asked_under}, but {served} is served; the requester has to call again"


def _count_grants(found: dict[str, Any]) -> str:
    return f"{found['granted']}/{found['needed']}"


def _colour(found: dict[str, Any]) -> str:
    return _COLOURS.get(str(found["state"]), "")


def _path(id: str) -> str:
    return f"/v1/approvals/{quote(id, safe='')}"


def _note_body(words: str | None) -> dict[str, Any]:
    return {} if words is None else {"note": words}


def _parse_json(text: str) -> Any:
    try:
        return strict_json(text.encode("utf-8", "surrogateescape"))
    except NotStrictJson as error:
        fail(f"--resolution cannot be read: {error}", """write it as --resolution '{"approved": true}'""")
