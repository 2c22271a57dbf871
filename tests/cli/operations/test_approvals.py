"""`gateway approvals`: approvers see the call before they decide, and errors name the remedy."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.approvals.held_calls import ADA, LEA, ApprovalFixture, action, refund
from tests.server.rest.approval_server import ApprovalRestServer, serve_approvals

pytestmark = pytest.mark.anyio

RESOLUTION = {"type": "object", "required": ["approved"], "properties": {"approved": {"const": True}}}


class Commands:
    """Runs commands against a served approval API, as the token's subject."""

    def __init__(self, url: str, folder: Path, served: ApprovalRestServer | None = None) -> None:
        self.url = url
        self.folder = folder
        self.served = served

    async def were_answered(self) -> None:
        """Return when some command has received an answer."""
        while self.served is not None and not self.served.answered:
            await asyncio.sleep(0.001)

    def publish(self, revision: str) -> None:
        assert self.served is not None
        self.served.publish(revision)

    async def run(self, *words: str, token: str = "lea", typed: str | None = None) -> Result:
        file = self.folder / f"token-{token}"
        file.write_text(f"{token}\n")
        options = ["--url", self.url, "--token-file", str(file)]
        return await asyncio.to_thread(CliRunner().invoke, app, ["approvals", *words, *options], input=typed)

    async def data(self, *words: str, token: str = "lea") -> Any:
        result = await self.run(*words, "--format", "json", token=token)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture
async def commands(desk: ApprovalFixture, tmp_path: Path) -> AsyncIterator[Commands]:
    app = ApprovalRestServer(desk)
    async with serve_approvals(app) as url:
        yield Commands(url, tmp_path, app)


async def test_list_is_a_table_of_what_waits(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending(refund(needed=2))

    listed = await commands.run("list")

    header, row = listed.stdout.splitlines()
    names = ["approval", "state", "tool", "requester", "arguments", "reason", "agreed", "asked", "expires", "decide"]
    assert header.split() == names
    assert row.split()[:6] == [id, "pending", "payment_refund", "user:ada", "amount=700", 'order="A-1"']
    assert row.split()[-4:] == ["0/2", "2026-05-01T12:00:00.000Z", "2026-05-01T12:30:00.000Z", "you"]


async def test_list_distinguishes_two_calls_of_one_tool(desk: ApprovalFixture, commands: Commands) -> None:
    await desk.pending(refund(action(arguments={"order": "A-1"})))
    desk.clock.advance(microseconds=1_234_567)
    await desk.pending(refund(action(arguments={"order": "A-2"})))

    _, newer, older = (await commands.run("list")).stdout.splitlines()

    assert 'order="A-2"' in newer
    assert "2026-05-01T12:00:01.234Z" in newer
    assert 'order="A-1"' in older
    assert "2026-05-01T12:00:00.000Z" in older


async def test_what_is_stale_is_listed_and_shown_as_such(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending()
    commands.publish("r2" * 32)
    await desk.pending(refund(action(revision="r2" * 32)))

    header, live, stale = (await commands.run("list")).stdout.splitlines()
    shown = await commands.run("show", id)

    assert header.split()[:4] == ["approval", "state", "stale", "tool"]
    assert stale.split()[:4] == [id, "pending", "yes", "payment_refund"]
    assert stale.endswith("you, to refuse")
    assert live.split()[1:3] == ["pending", "payment_refund"]
    assert live.endswith("Z  you")
    assert "stale: requested under revision r1, but r2r2r2r2r2r2 is served; the requester has to call" in shown.stdout
    assert [each["stale"] for each in await commands.data("list")] == [False, True]


async def test_watch_shows_that_it_became_stale(desk: ApprovalFixture, commands: Commands) -> None:
    await desk.pending()
    watching = asyncio.create_task(commands.run("watch", "--every", "0.2", "--rounds", "10"))
    await commands.were_answered()
    commands.publish("r2")

    live, stale = (await watching).stdout.splitlines()

    assert "  pending  payment_refund" in live
    assert "  pending  stale  payment_refund" in stale


@pytest.mark.parametrize("options", [(), ("--yes",)], ids=["asked", "at-once"])
async def test_what_is_stale_is_not_granted(
    desk: ApprovalFixture, commands: Commands, options: tuple[str, ...]
) -> None:
    id = await desk.pending()
    commands.publish("r2")

    granted = await commands.run("grant", id, *options, typed="y\n")
    refused = await commands.run("refuse", id, typed="y\n")

    assert (granted.exit_code, granted.stdout) == (1, "")
    assert granted.stderr == (
        "error: the approval was requested under revision r1, but r2 is served here: no call can use it; "
        "the requester has to call again, which requests another approval; this one can be refused\n"
    )
    assert (refused.exit_code, "payment_refund for user:ada: refused" in refused.stdout) == (0, True)


async def test_list_goes_through_all_pages(desk: ApprovalFixture, commands: Commands) -> None:
    await asyncio.gather(*(desk.pending(refund(action(arguments={"n": n}))) for n in range(90)))

    assert len(await commands.data("list", "--limit", "500")) == 90
    assert len(await commands.data("list", "--limit", "7", "--role", "approver", "--tool", "payment_refund")) == 7


async def test_nothing_waits(commands: Commands) -> None:
    pending, everything = await commands.run("list"), await commands.run("list", "--state", "any")

    assert (pending.exit_code, pending.stdout) == (0, "")
    assert "no approval is pending" in pending.stderr
    assert "no approval matches" in everything.stderr


async def test_show_hides_nothing(desk: ApprovalFixture, commands: Commands) -> None:
    request = refund(
        action(arguments={"text": "one\u202e\ntwo", "other": {"a": [1]}}),
        show=("text",),
        resolution=RESOLUTION,
        needed=2,
    )
    id = await desk.pending(request)
    await desk.approvals.decide(id, LEA, "grant", resolution={"approved": True}, note="fine \x1b[1A")

    shown = await commands.run("show", id)

    assert r'"one\u202e\ntwo"' in shown.stdout
    assert "1 invisible characters" in shown.stdout
    assert "1 more that the rule does not show" in shown.stdout
    assert r"user:lea decided grant at 2026-05-01T12:00:00.000Z: fine \u001b[1A" in shown.stdout
    assert "2026-05-01T12:30:00.000Z" in shown.stdout
    assert "+00:00" not in shown.stdout
    assert "stale" not in shown.stdout
    assert "content is not verified" in shown.stdout
    assert "--resolution" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert (await commands.data("show", id))["id"] == id


async def test_grant_shows_and_asks_first(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending(refund(needed=2))

    hesitant = await commands.run("grant", id, typed="\n")
    silent = await commands.run("grant", id, typed="")
    convinced = await commands.run("grant", id, "--note", "looked at it", typed="y\n")

    assert (hesitant.exit_code, silent.exit_code, convinced.exit_code) == (1, 1, 0)
    assert "nothing was decided" in hesitant.stderr
    assert "no answer was given" in silent.stderr
    assert '"A-1"' in convinced.stdout
    assert "payment_refund for user:ada: pending" in convinced.stdout
    assert "1 of 2 agreed so far" in convinced.stderr
    [entry] = (await desk.approvals.find(id, ADA)).entries
    assert (entry.approver.subject, entry.note) == ("user:lea", "looked at it")


async def test_grant_without_asking_needs_an_option(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending(refund(resolution=RESOLUTION))

    missing = await commands.run("grant", id, "--yes")
    granted = await commands.data("grant", id, "--yes", "--resolution", '{"approved": true}')

    assert missing.exit_code == 1
    assert missing.stderr == (
        'error: "approved" is a required property; the approval stays open; send a resolution that fits its schema\n'
    )
    assert granted["state"] == "granted"


async def test_everything_that_is_wrong_is_reported_once(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending(refund(resolution=RESOLUTION))

    resolution = await commands.run("grant", id, "--yes", "--resolution", '{"approved": false}')
    body = await commands.run("refuse", id, "--note", "x" * 2001, "--shown-digest", "0")

    assert resolution.stderr == (
        "error: 'approved': true was expected; the approval stays open; send a resolution that fits its schema\n"
    )
    assert (body.stderr.count("'note'"), body.stderr.count("'shownDigest'")) == (1, 1)


async def test_resolution_where_none_is_taken_is_to_be_left_out(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending()

    result = await commands.run("grant", id, "--yes", "--resolution", '{"approved": true}')

    assert result.stderr == (
        "error: this approval takes no resolution; the approval stays open; leave the resolution out\n"
    )


async def test_grant_of_what_was_looked_at_before(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending()
    shown = await commands.data("show", id)

    other = await commands.run("grant", id, "--shown-digest", "0" * 64)
    same = await commands.run("grant", id, "--shown-digest", shown["shownDigest"])

    assert (other.exit_code, same.exit_code) == (1, 0)
    assert "not the one that would be approved" in other.stderr


async def test_refusing_ends_it(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending()

    refused = await commands.run("refuse", id, "--yes", "--note", "no")
    again = await commands.run("grant", id, "--yes", token="leo")

    assert (refused.exit_code, again.exit_code) == (0, 1)
    assert "payment_refund for user:ada: refused" in refused.stdout
    assert "the approval is refused already" in again.stderr


async def test_watch_shows_new_approvals_and_their_outcomes(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending()
    watching = asyncio.create_task(commands.run("watch", "--every", "0.2", "--rounds", "15", "--format", "json"))
    await commands.were_answered()
    await desk.approvals.decide(id, LEA, "grant")

    watched = await watching

    assert [(each["id"], each["state"]) for each in map(json.loads, watched.stdout.splitlines())] == [
        (id, "pending"),
        (id, "granted"),
    ]


async def test_watch_prints_lines_for_people_and_forgets_what_is_not_theirs(
    desk: ApprovalFixture, commands: Commands
) -> None:
    id = await desk.pending()
    watching = asyncio.create_task(commands.run("watch", "--every", "0.2", "--rounds", "10"))
    await commands.were_answered()
    desk.directory.roles["user:lea"] = set()

    watched = await watching

    assert watched.exit_code == 0
    assert watched.stdout.splitlines() == [
        f'{id}  pending  payment_refund  user:ada  amount=700 order="A-1"  A refund above the limit  0/1'
        "  asked 2026-05-01T12:00:00.000Z  until 2026-05-01T12:30:00.000Z"
    ]


@pytest.mark.parametrize("word", ["show", "grant", "refuse"])
async def test_unknown_approval_is_reported(commands: Commands, word: str) -> None:
    result = await commands.run(word, "unknown")

    assert result.exit_code == 1
    assert "there is no approval 'unknown' for you; gateway approvals list --state any" in result.stderr


async def test_requester_gets_the_reason_for_a_refusal(desk: ApprovalFixture, commands: Commands) -> None:
    id = await desk.pending()

    result = await commands.run("grant", id, "--yes", token="ada")

    assert (result.exit_code, "the requester of an approval cannot decide it" in result.stderr) == (1, True)


@pytest.mark.parametrize("word", ["grant", "refuse"])
async def test_caller_who_may_not_decide_is_refused_before_anything_is_shown(
    desk: ApprovalFixture, commands: Commands, word: str
) -> None:
    id = await desk.pending(refund(needed=2))
    await desk.approvals.decide(id, LEA, "grant")

    own = await commands.run(word, id, token="ada", typed="y\n")
    second = await commands.run(word, id, typed="y\n")

    assert [(each.exit_code, each.stdout) for each in (own, second)] == [(1, ""), (1, "")]
    assert own.stderr.startswith("error: the requester of an approval cannot decide it; ask another approver")
    assert second.stderr == "error: you have decided this approval before; it waits for other approvers\n"


async def test_token_that_is_not_accepted_is_reported(commands: Commands) -> None:
    result = await commands.run("list", token="mallory")

    assert (result.exit_code, "does not accept the token" in result.stderr) == (1, True)
    assert "mallory" not in result.stderr.replace("token-mallory", "")


async def test_gateway_without_approvals_is_reported(tmp_path: Path) -> None:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"[]"})

    async with serve_approvals(bare) as url:
        result = await Commands(url, tmp_path).run("list")

    assert (result.exit_code, "serves no approvals" in result.stderr) == (1, True)


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        pytest.param(200, [], b"<html>", "is not a gateway", id="something-else"),
        pytest.param(500, [], b"<html>", "the gateway answered 500", id="broken"),
        pytest.param(302, [(b"location", b"http://elsewhere/")], b"", "the gateway answered 302", id="redirect"),
    ],
)
async def test_what_is_no_gateway_is_reported(
    tmp_path: Path, status: int, headers: list[tuple[bytes, bytes]], body: bytes, expected: str
) -> None:
    async def bare(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with serve_approvals(bare) as url:
        result = await Commands(url, tmp_path).run("list")

    assert (result.exit_code, expected in result.stderr) == (1, True)


def invoke(*words: str, environment: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, ["approvals", *words], env={"GATEWAY_TOKEN": "", **(environment or {})})


def test_no_gateway_there_is_reported() -> None:
    result = invoke("list", "--url", "http://127.0.0.1:1")

    assert result.exit_code == 1
    assert "no gateway answers at http://127.0.0.1:1" in result.stderr
    assert "--url" in result.stderr


@pytest.mark.parametrize(
    "url", ["gateway", "ftp://host", "http://", "http://[::1", "http://host/?a=1", "http://user:pw@host"]
)
def test_url_that_is_none_is_wrong_use(url: str) -> None:
    result = invoke("list", "--url", url)

    assert (result.exit_code, "is not the URL of a gateway" in result.stderr) == (2, True)


@pytest.mark.parametrize("host", ["gateway.example.com", "10.0.0.1"])
def test_token_is_not_sent_where_it_could_be_overheard(host: str) -> None:
    result = invoke("list", "--url", f"http://{host}", environment={"GATEWAY_TOKEN": "secret-token"})

    assert (result.exit_code, "unencrypted" in result.stderr) == (2, True)
    assert "secret-token" not in result.output


def test_token_of_the_environment_is_sent_to_this_host() -> None:
    for url in ("http://localhost:1", "http://127.0.0.1:1"):
        assert invoke("list", "--url", url, environment={"GATEWAY_TOKEN": "secret-token"}).exit_code == 1


@pytest.mark.parametrize("content", [None, b"", b"two words", b"\xff\xfe", "é".encode()], ids=str)
def test_token_file_holds_one_token(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    result = invoke("list", "--token-file", str(file))

    assert (result.exit_code, "the token file" in result.stderr) == (2, True)


def test_resolution_is_json() -> None:
    result = invoke("grant", "id", "--resolution", "{approved")

    assert (result.exit_code, "--resolution cannot be read: not JSON" in result.stderr) == (2, True)
