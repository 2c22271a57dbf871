"""`gateway approvals`: what waits for people, shown in full, and decided as whoever the token is for."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import quote

import typer

from gateway.cli.console import fail, note, out, print_json, print_line, print_pairs, print_table
from gateway.cli.moments import shown_moment
from gateway.cli.remote import DEFAULT_URL, Answered, Insecure, Remote, TokenFile, Url, remote_at
from gateway.config.report_text import visible
from gateway.web.bodies import NotStrictJson, strict_json

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
    add_completion=False, no_args_is_help=True, help="Show and decide what waits for approval.", rich_markup_mode=None
)

Output = Annotated[Literal["text", "json"], typer.Option("--output", "--format", help="For people, or for programs.")]
Id = Annotated[str, typer.Argument(help="The approval's id.")]
Note = Annotated[str | None, typer.Option(help="Words for whoever asked, and for the record.", show_default=False)]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask; you have looked at it.")]
Shown = Annotated[
    str | None,
    typer.Option(help="Decide only if this is still the shownDigest of what `show` shows.", show_default=False),
]


@app.command("list")
def list_approvals(
    state: Annotated[
        Literal["pending", "granted", "refused", "expired", "used", "void", "withdrawn", "any"],
        typer.Option(help="Only approvals in this state."),
    ] = "pending",
    role: Annotated[
        Literal["approver", "requester"] | None,
        typer.Option(help="Only what you are asked about, or what you asked for.", show_default=False),
    ] = None,
    tool: Annotated[str | None, typer.Option(help="Only approvals of this tool.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most, newest first.")] = 50,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    output: Output = "text",
) -> None:
    """List what you may decide or asked for, newest first.

    What is stale was asked for under documents that are not served any more: nobody can grant it, and no call uses it.

    Exit codes: 0 listed, 1 the gateway cannot be reached or refuses, 2 wrong use.
    """
    remote = remote_at(url, token_file, insecure=insecure)
    found = _answered(lambda: list(_pages(remote, limit, state=state, role=role, tool=tool)))
    if output == "json":
        print_json(found)
        return
    if not found:
        note("nothing waits" if state == "pending" else "no approvals fit")
        return
    print_table(out(), _COLUMNS, [_row(each) for each in found], colours=_COLOURS)


@app.command("show")
def show_approval(
    id: Id,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    output: Output = "text",
) -> None:
    """Show everything there is to decide upon: who asks, why, and every argument with nothing hidden in it.

    Exit codes: 0 shown, 1 there is no such approval or no gateway, 2 wrong use.
    """
    _print(_shown(remote_at(url, token_file, insecure=insecure), id), output)


@app.command("grant")
def grant(
    id: Id,
    note: Note = None,
    resolution: Annotated[
        str | None, typer.Option(help="The answer that the approval asks for, as JSON.", show_default=False)
    ] = None,
    yes: Yes = False,
    shown_digest: Shown = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    output: Output = "text",
) -> None:
    """Agree, after looking at it. The digest of what you were shown is kept with your decision.

    What is stale cannot be granted: whoever asked has to call again.

    Exit codes: 0 done, 1 not done, 2 wrong use.
    """
    body = {} if resolution is None else {"resolution": _json(resolution)}
    remote = remote_at(url, token_file, insecure=insecure)
    _decide(remote, id, "grant", {**body, **_noted(note)}, yes=yes, shown_digest=shown_digest, output=output)


@app.command("refuse")
def refuse(
    id: Id,
    note: Note = None,
    yes: Yes = False,
    shown_digest: Shown = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    output: Output = "text",
) -> None:
    """Refuse; that ends it, whoever else agreed.

    Exit codes: 0 done, 1 not done, 2 wrong use.
    """
    remote = remote_at(url, token_file, insecure=insecure)
    _decide(remote, id, "refuse", _noted(note), yes=yes, shown_digest=shown_digest, output=output)


@app.command("watch")
def watch(
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    rounds: Annotated[int | None, typer.Option(min=1, help="Stop after so many looks.", show_default=False)] = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    insecure: Insecure = False,
    output: Output = "text",
) -> None:
    """Follow what comes to wait for you, and what becomes of it, until you press Ctrl-C.

    Exit codes: 0 stopped as asked, 1 the gateway cannot be reached or refuses, 2 wrong use.
    """
    remote = remote_at(url, token_file, insecure=insecure)
    waiting: dict[str, Any] = {}
    try:
        for _ in _looks(every, rounds):
            now = {each["id"]: each for each in _answered(lambda: list(_pages(remote, 1000, state="pending")))}
            gone = [each for each in waiting if each not in now]
            ended = [each for each in map(partial(_what_became, remote), gone) if each is not None]
            for found in [*ended, *(now[each] for each in reversed(now) if now[each] != waiting.get(each))]:
                _tell(found, output)
            waiting = now
    except KeyboardInterrupt:
        return


def _looks(every: float, rounds: int | None) -> Iterator[int]:
    done = 0
    while True:
        yield done
        done += 1
        if done == rounds:
            return
        time.sleep(every)


def _what_became(remote: Remote, id: str) -> dict[str, Any] | None:
    """`None` for one that is not the caller's to see any more."""

    def asked() -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = remote.get(_path(id))
        except Answered as refusal:
            if refusal.code != _UNKNOWN:
                raise
            return None
        return found

    return _answered(asked)


def _pages(remote: Remote, limit: int, **wanted: Any) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while limit > 0:
        page = remote.get("/v1/approvals", **wanted, limit=min(limit, 200), cursor=cursor)
        yield from page["approvals"]
        limit -= len(page["approvals"])
        cursor = page.get("next")
        if cursor is None:
            return


def _shown(remote: Remote, id: str) -> dict[str, Any]:
    found: dict[str, Any] = _answered(lambda: remote.get(_path(id)), id=id)
    return found


def _decide(
    remote: Remote,
    id: str,
    vote: Literal["grant", "refuse"],
    body: dict[str, Any],
    *,
    yes: bool,
    shown_digest: str | None,
    output: str,
) -> None:
    found = _shown(remote, id)
    if not yes and shown_digest is None:
        if obstacle := found.get("mayNot", {}).get(vote):
            fail(obstacle, code=1)
        _confirm(found, "Approve exactly this?" if vote == "grant" else "Refuse it?")
    digest = shown_digest or found["shownDigest"]
    decided = _answered(lambda: remote.post(f"{_path(id)}/{_VERBS[vote]}", {**body, "shownDigest": digest}), id=id)
    if output == "json":
        print_json(decided)
        return
    print_line(out(), f"{decided['tool']} for {decided['requester']}: ", (decided["state"], _colour(decided)))
    if decided["state"] == "pending":
        note(f"{decided['granted']} of {decided['needed']} agreed so far")


def _confirm(found: dict[str, Any], question: str) -> None:
    _print(found, "text")
    try:
        agreed = typer.confirm(visible(question), default=False, err=True)
    except typer.Abort:
        fail("nobody answered", "look at it with `gateway approvals show`, then give --yes", code=1)
    if not agreed:
        fail("nothing was decided", code=1)


def _print(found: dict[str, Any], output: str) -> None:
    if output == "json":
        print_json(found)
        return
    agreed = f"{found['granted']} of {found['needed']}, by {', '.join(found['approvers'])}"
    pairs = [(name, _value(found, name)) for name in _PAIRS] + [("agreed", agreed)]
    print_pairs(out(), pairs + [(name, _value(found, name)) for name in _MORE if name in found])
    for entry in found["entries"]:
        said = f": {entry['note']}" if "note" in entry else ""
        print_line(out(), f"{entry['approver']} said {entry['decision']} at {_moment(entry['at'])}{said}")
    if found.get("stale"):
        print_line(out(), (_stale_words(found), "bold yellow"))
    print_line(out(), "")
    print_line(out(), ("arguments, as the caller sent them; nobody vouches for what they say", "bold"))
    for argument in found["arguments"]:
        _print_argument(argument)
    if found["leftOut"]:
        print_line(out(), (f"{found['leftOut']} more that the rule does not show", "yellow"))
    if "resolutionSchema" in found:
        print_line(out(), f"answer with --resolution, as {json.dumps(found['resolutionSchema'])}")


def _print_argument(argument: dict[str, Any]) -> None:
    unseen = argument["unseen"]
    hidden = (f"   {unseen} characters that would not be seen", "bold red") if unseen else ""
    print_line(out(), "  ", (argument["name"], "cyan"), hidden)
    for line in argument["value"].split("\n"):
        print_line(out(), f"    {line}")


def _tell(found: dict[str, Any], output: str) -> None:
    if output == "json":
        print_json(found, indent=None)
        return
    asked, until = f"asked {_value(found, 'createdAt')}", f"until {_value(found, 'expiresAt')}"
    cells = [*_named(found, "tool", "requester", "excerpt", "reason"), _agreed(found), asked, until]
    words = "".join(f"  {cell}" for cell in cells if cell)
    stale = ("  stale", "yellow") if found.get("stale") else ""
    print_line(out(), f"{found['id']}  ", (found["state"], _colour(found)), stale, words)


def _answered(asking: Callable[[], T], *, id: str | None = None) -> T:
    """What the gateway gives. Ends the command with what its refusal means."""
    try:
        return asking()
    except Answered as refusal:
        if refusal.status == 401:
            fail("the gateway does not accept the token", "give one that is valid there with --token-file", code=1)
        if refusal.code == _UNKNOWN:
            help = "gateway approvals list --state any shows what you may see"
            fail(f"there is no approval {id!r} for you", help, code=1)
        if refusal.status == 404:
            fail("this gateway serves no approvals", "check --url", code=1)
        fail(refusal.detail, refusal.help, code=1)  # which tells every one of its errors


def _row(found: dict[str, Any]) -> list[str]:
    about = _named(found, "tool", "requester", "excerpt", "reason")
    moments = (_value(found, "createdAt"), _value(found, "expiresAt"))
    stale = "yes" if found.get("stale") else ""
    return [*_named(found, "id", "state"), stale, *about, _agreed(found), *moments, _may_decide(found)]


def _named(found: dict[str, Any], *names: str) -> list[str]:
    return [str(found.get(name, "")) for name in names]


def _value(found: dict[str, Any], name: str) -> str:
    return _moment(found[name]) if name in _MOMENTS else str(found[name])


def _moment(text: str) -> str:
    return shown_moment(datetime.fromisoformat(text))


def _may_decide(found: dict[str, Any]) -> str:
    if not found["mayDecide"]:
        return ""
    return "you, to refuse" if found.get("stale") else "you"


def _stale_words(found: dict[str, Any]) -> str:
    asked_under, served = (str(found[name])[:_SHORT_REVISION] for name in ("revision", "servedRevision"))
    return f"stale: asked for under revision {asked_under}, and {served} is served; whoever asked has to call again"


def _agreed(found: dict[str, Any]) -> str:
    return f"{found['granted']}/{found['needed']}"


def _colour(found: dict[str, Any]) -> str:
    return _COLOURS.get(str(found["state"]), "")


def _path(id: str) -> str:
    return f"/v1/approvals/{quote(id, safe='')}"


def _noted(words: str | None) -> dict[str, Any]:
    return {} if words is None else {"note": words}


def _json(text: str) -> Any:
    try:
        return strict_json(text.encode("utf-8", "surrogateescape"))
    except NotStrictJson as error:
        fail(f"--resolution cannot be read: {error}", """write it as --resolution '{"approved": true}'""")
