"""The service: turns, calls and records for one principal; pipelines that stop calls, keys, and interrupted calls."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.artifacts.formats.json_artifact import SpooledJsonArtifact
from gateway.engine.execute import PROPOSED_CALLS
from gateway.errors import (
    GatewayError,
    IdempotencyConflict,
    NotPermitted,
    RecordConflict,
    UnknownCall,
    UnknownCatalogue,
    UnknownTool,
    UnknownTurn,
)
from gateway.model.media import FileMediaReader, InMemoryMediaReader, Media, OpenedMediaReader
from gateway.model.primitives.canonical_json import call_id
from gateway.model.tokenizer import Tokenizable
from gateway.model.tools.backend import Invocation
from gateway.registries.snapshot import ArtifactClass
from gateway.storage.call_store import CallFilter, StoredCall
from tests.engine.service_gateway import ANA, BOB, EVE, HERE, Gateway, Grants, Plan, running, trust

pytestmark = pytest.mark.anyio


class Door:
    """A tool that waits inside until it is released."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()
        self.open = asyncio.Event()
        self.runs = 0

    async def run(self, call: Invocation) -> Any:
        self.runs += 1
        self.inside.set()
        await self.open.wait()
        return "done"


async def find_stored(gateway: Gateway, id: str) -> StoredCall:
    found = await gateway.store.find_call(id, ANA)
    assert found is not None
    return found


# --- lists and audiences ---


async def test_callers_outside_the_audience_find_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        for ask in (
            lambda: gateway.service.turns.open(EVE, "desk"),
            lambda: gateway.service.call_tool(EVE, "desk", "echo", {}),
            lambda: gateway.service.call_tool(ANA, "nowhere", "echo", {}),
        ):
            with pytest.raises(UnknownCatalogue):
                await ask()
        with pytest.raises(UnknownCatalogue):
            gateway.service.list_tools(EVE, "desk")


async def test_open_turn_of_a_caller_with_unknown_roles_finds_nothing(tmp_path: Path) -> None:
    class Broken(Grants):
        def roles_of(self, names: frozenset[str]) -> frozenset[str]:
            raise RuntimeError("the authoriser is broken")

    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        gateway.grants = Broken()
        gateway.publish()
        with pytest.raises(UnknownCatalogue):
            await gateway.service.call_tool(ANA, "desk", "echo", {}, handle=turn.id)


async def test_unknown_and_not_visible_are_one_error(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x").tool("secret", "x")) as gateway:
        gateway.grants.rows = {("secret", "discover"): False, ("secret", "invoke"): False}
        errors = []
        for name in ("secret", "nothing"):
            with pytest.raises(UnknownTool) as refusal:
                await gateway.service.call_tool(ANA, "desk", name, {})
            errors.append((refusal.value.message, refusal.value.help, refusal.value.code))

        assert errors[0] == errors[1]
        assert {each.name for each in await gateway.service.list_tools(ANA, "desk").all() if each.declared} == {"echo"}


# --- turns ---


async def test_first_calls_of_a_shared_turn_that_run_together_are_all_known(tmp_path: Path) -> None:
    door = Door()
    async with running(tmp_path, Plan().tool("door", door.run).tool("echo", "x")) as gateway:
        service = gateway.service
        turn = await service.turns.open(ANA, "desk", is_kept=False, is_shared=True)
        slow = [asyncio.create_task(service.call_in_turn(turn, "door", {}, id=f"slow{number}")) for number in range(2)]
        await door.inside.wait()
        await service.call_in_turn(turn, "echo", {}, id="quick")
        door.open.set()
        await asyncio.gather(*slow)

        known = ["quick", "slow0", "slow1"]
        assert [id for id in known if turn.ctx.has_tool_call(id)] == known
        assert [each.id for each in await gateway.store.list_turn_calls(turn.id)] == known
        assert (await gateway.store.read_turn_state(turn.id) or b"").count(b'"calls":3') == 1


async def test_turns_are_found_by_their_owner_in_their_catalogue_until_they_end(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x"), open_turns=1) as gateway:
        service = gateway.service
        first, second = await service.turns.open(ANA, "desk"), await service.turns.open(ANA, "desk")
        assert len(service.turns) == 1
        assert (await service.turns.find(ANA, first.id)).id == first.id  # from the store
        for principal, id, catalogue in ((BOB, first.id, None), (ANA, "turn_x", None), (ANA, second.id, "vault")):
            with pytest.raises(UnknownTurn):
                await service.turns.find(principal, id, catalogue=catalogue)
        await service.turns.end(await service.turns.find(ANA, first.id))
        with pytest.raises(UnknownTurn):
            await service.turns.find(ANA, first.id)
        assert (await service.turns.find_any(ANA, first.id)).stored.ending == "ack"
        with pytest.raises(UnknownTurn):
            await service.turns.find_any(BOB, first.id)


@pytest.mark.parametrize("ending", ["nack", "abort"])
async def test_turn_ends_as_its_caller_chooses_and_takes_no_calls_then(ending: Any, tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        await gateway.service.turns.end(turn, ending)

        assert turn.ctx.aborted is (ending == "abort")
        assert (await gateway.service.turns.find_any(ANA, turn.id)).stored.ending == ending
        with pytest.raises(UnknownTurn):
            await gateway.service.turns.find(ANA, turn.id)


async def test_turn_of_one_call_that_was_not_kept_ends_without_a_trace(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk", is_kept=False)
        await gateway.service.turns.end(turn, "nack")
        with pytest.raises(UnknownTurn):
            await gateway.service.turns.find_any(ANA, turn.id)


async def test_calls_are_listed_newest_first(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        made = [(await gateway.service.call_tool(ANA, "desk", "echo", {"n": n})).record.id for n in range(3)]
        await gateway.service.call_tool(BOB, "desk", "echo", {})
        wanted = CallFilter(tenant=ANA.tenant, subject=ANA.subject)
        first, cursor = await gateway.service.list_calls(wanted, limit=2)
        rest, end = await gateway.service.list_calls(wanted, limit=2, before=cursor)

    assert [each.id for each in (*first, *rest)] == made[::-1]
    assert end is None


async def test_turn_is_over_at_its_time(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x"), lives=timedelta(0)) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        with pytest.raises(UnknownTurn):
            await gateway.service.turns.find(ANA, turn.id)


async def test_turn_goes_on_under_what_is_published_now(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk", stash={"a": 1})
        made = (await gateway.service.call_in_turn(turn, "echo", {})).record
        errors: list[str] = []
        gateway.service.on_change.add(lambda: errors.append("changed"))
        gateway.publish()
        renewed = await gateway.service.turns.find(ANA, turn.id)

        assert errors == ["changed"]
        assert renewed.published is gateway.service.published
        assert [each.id for each in renewed.ctx.turn_tool_calls] == [made.id]
        assert renewed.ctx.stash.get("a") == 1


@pytest.mark.parametrize("drops", [True, False], ids=["from the store", "in memory"])
async def test_turn_goes_on_without_what_its_caller_may_not_read_any_more(drops: bool, tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x").tool("other", "y"), open_turns=1) as gateway:
        service = gateway.service
        turn = await service.turns.open(ANA, "desk")
        taken = (await service.call_in_turn(turn, "echo", {})).record
        kept = (await service.call_in_turn(turn, "other", {})).record
        asked = (await service.call_in_turn(turn, "artifact_cat", {"callId": taken.id})).record
        assert not asked.is_error
        gateway.grants.rows = {("echo", "invoke"): False, ("echo", "discover"): True}
        if drops:
            await service.turns.open(ANA, "vault")
        else:
            gateway.publish()
        found = await service.turns.find(ANA, turn.id)

        assert [each.id for each in found.ctx.turn_tool_calls] == [kept.id]
        again = await service.call_in_turn(found, "artifact_cat", {"callId": taken.id})
        assert again.record.is_error


# --- pipelines ---


def stopping(how: str) -> Callable[..., Any]:
    async def stage(ctx: Any, next: Any) -> None:
        if how == "refuses":
            raise NotPermitted("not today")
        if how == "breaks":
            raise RuntimeError("secret of the database")
        if how == "goes on":
            await next()

    return stage


@pytest.mark.parametrize("how", ["refuses", "breaks", "stops"])
async def test_call_that_a_pipeline_does_not_let_through_is_an_error_on_record(how: str, tmp_path: Path) -> None:
    ran: list[str] = []

    async def run(call: Invocation) -> Any:
        ran.append(call.tool)
        return "x"

    plan = Plan(stages={"dispatch_input": [stopping(how)]}).tool("echo", run)
    async with running(tmp_path, plan) as gateway:
        settled = await gateway.service.call_tool(ANA, "desk", "echo", {"a": 1})
        record = await find_stored(gateway, settled.record.id)

    assert ran == []
    assert settled.record.is_error
    assert (record.decision, record.status, record.args) == ("deny", "settled", {})
    assert record.excerpt is not None
    assert (record.excerpt.bytes, record.checksum) == (len('{"a":1}'), call_id("echo", {"a": 1}))
    assert isinstance(settled.record.results, Tokenizable)
    assert ("not today" in str(settled.record.results)) is (how == "refuses")


async def test_pipeline_that_fails_after_the_call_does_not_lose_its_record(tmp_path: Path) -> None:
    plan = Plan(stages={"dispatch_output": [stopping("refuses")]}).tool("echo", "x")
    async with running(tmp_path, plan) as gateway:
        settled = await gateway.service.call_tool(ANA, "desk", "echo", {})

        assert not settled.record.is_error
        assert (await find_stored(gateway, settled.record.id)).decision == "allow"


@pytest.mark.parametrize("phase", ["turn_input", "turn_output"])
async def test_pipeline_of_a_turn_can_refuse_it(phase: str, tmp_path: Path) -> None:
    plan = Plan(stages={phase: [stopping("refuses")]}).tool("echo", "x")
    async with running(tmp_path, plan) as gateway:
        with pytest.raises(GatewayError):
            await gateway.service.call_tool(ANA, "desk", "echo", {})


class Outputs:
    """An output stage that counts its turns, and how many calls it sees in each."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.pause = anyio.Event()
        self.pause.set()

    async def __call__(self, ctx: Any, next: Any) -> None:
        self.seen.append((ctx.turn_id, len(ctx.turn_tool_calls)))
        await self.pause.wait()
        await next()


@pytest.mark.parametrize("restarts", [False, True])
async def test_output_of_a_turn_that_a_call_begins_runs_after_that_call_alone(restarts: bool, tmp_path: Path) -> None:
    outputs = Outputs()
    plan = Plan(stages={"turn_output": [outputs]}).tool("echo", "x")
    async with running(tmp_path, plan) as gateway:
        first = await gateway.service.call_tool(ANA, "desk", "echo", {})
        ran = [(first.turn.id, 1)]
        assert outputs.seen == ran
        if not restarts:
            await gateway.service.call_tool(ANA, "desk", "echo", {}, handle=first.turn.id)
            await gateway.service.turns.end(await gateway.service.turns.find(ANA, first.turn.id))
    async with running(tmp_path, plan) as gateway:
        if restarts:
            await gateway.service.call_tool(ANA, "desk", "echo", {}, handle=first.turn.id)
            await gateway.service.turns.end(await gateway.service.turns.find(ANA, first.turn.id))
        other = await gateway.service.call_tool(ANA, "desk", "echo", {})

    assert outputs.seen == [*ran, (other.turn.id, 1)]


@pytest.mark.parametrize("ending", ["ack", "nack", "abort"])
async def test_output_of_an_opened_turn_runs_when_it_is_acked(ending: Any, tmp_path: Path) -> None:
    outputs = Outputs()
    async with running(tmp_path, Plan(stages={"turn_output": [outputs]}).tool("echo", "x")) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        await gateway.service.call_in_turn(turn, "echo", {})
        await gateway.service.call_tool(ANA, "desk", "echo", {}, handle=turn.id)
        assert outputs.seen == []
        await gateway.service.turns.end(turn, ending)

    assert outputs.seen == ([(turn.id, 2)] if ending == "ack" else [])


async def test_output_runs_once_however_many_end_the_turn(tmp_path: Path) -> None:
    outputs = Outputs()
    plan = Plan(stages={"turn_output": [outputs]}).tool("echo", "x")
    async with running(tmp_path, plan) as gateway, running(tmp_path, plan) as other:
        turn = await gateway.service.turns.open(ANA, "desk")
        elsewhere = await other.service.turns.find(ANA, turn.id)
        ends = [gateway.service.turns.end(turn), other.service.turns.end(elsewhere), gateway.service.turns.end(turn)]
        done = await asyncio.gather(*ends, return_exceptions=True)

    assert outputs.seen == [(turn.id, 0)]
    assert [type(each) for each in done].count(RecordConflict) == 2


async def test_turn_ends_whatever_its_output_raises(tmp_path: Path) -> None:
    ended: list[Any] = []
    plan = Plan(stages={"turn_output": [stopping("refuses")]}).tool("echo", "x")
    async with running(tmp_path, plan) as gateway:
        gateway.service.buses.observability.on("turnEnd", ended.append)
        turn = await gateway.service.turns.open(ANA, "desk")
        with pytest.raises(NotPermitted):
            await gateway.service.turns.end(turn)

        assert [event.turn_id for event in ended] == [turn.id]
        with pytest.raises(UnknownTurn):
            await gateway.service.turns.find(ANA, turn.id)


async def test_stages_learn_which_call_is_about_to_be_made(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def look(ctx: Any, next: Any) -> None:
        seen.append(ctx.stash.get(PROPOSED_CALLS))
        await next()

    async with running(tmp_path, Plan(stages={"dispatch_input": [look]}).tool("echo", "x")) as gateway:
        settled = await gateway.service.call_tool(ANA, "desk", "echo", '{"a": 1}')

    assert seen == [[settled.record.checksum]]


@pytest.mark.parametrize("args", ["{broken", "[1]", "3", None], ids=str)
async def test_arguments_of_any_kind_end_as_a_record(args: Any, tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        settled = await gateway.service.call_tool(ANA, "desk", "echo", args)

    assert settled.record.is_error is (args is not None)


# --- keys ---


async def test_key_answers_again_what_it_answered_first(tmp_path: Path) -> None:
    door = Door()
    door.open.set()
    async with running(tmp_path, Plan().tool("pay", door.run, trust=trust("writes"))) as gateway:
        first = await gateway.service.call_tool(ANA, "desk", "pay", {}, key="k")
        again = await gateway.service.call_tool(ANA, "desk", "pay", {}, key="k")
        await gateway.service.call_tool(BOB, "desk", "pay", {}, key="k")
        with pytest.raises(IdempotencyConflict):
            await gateway.service.call_tool(ANA, "desk", "pay", {"other": 1}, key="k")
        with pytest.raises(IdempotencyConflict):
            await gateway.service.call_tool(ANA, "vault", "pay", {}, key="k")

    assert (again.is_replay, again.record.id, again.turn.id) == (True, first.record.id, first.turn.id)
    assert door.runs == 2


async def test_key_of_a_running_call_is_reported_as_running(tmp_path: Path) -> None:
    door = Door()
    async with running(tmp_path, Plan().tool("pay", door.run)) as gateway:
        call = asyncio.create_task(gateway.service.call_tool(ANA, "desk", "pay", {}, key="k"))
        await door.inside.wait()
        with pytest.raises(IdempotencyConflict) as refusal:
            await gateway.service.call_tool(ANA, "desk", "pay", {}, key="k")
        door.open.set()
        await call

    assert refusal.value.code == "E_IDEMPOTENCY_RUNNING"
    assert door.runs == 1


async def test_key_of_a_call_is_worth_nothing_without_the_right_to_it(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "treasure")) as gateway:
        await gateway.service.call_tool(ANA, "desk", "echo", {}, key="k")
        gateway.grants.rows = {("echo", "invoke"): False, ("echo", "discover"): True}
        with pytest.raises(UnknownCall):
            await gateway.service.call_tool(ANA, "desk", "echo", {}, key="k")
        gateway.grants.rows[("echo", "read")] = True
        again = await gateway.service.call_tool(ANA, "desk", "echo", {}, key="k")

    assert again.is_replay


async def test_key_of_a_query_is_worth_nothing_without_the_artifact(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "treasure")) as gateway:
        service = gateway.service
        made = (await service.call_tool(ANA, "desk", "echo", {})).record
        query = {"callId": made.id}
        first = await service.call_tool(ANA, "desk", "artifact_cat", query, key="k")
        again = await service.call_tool(ANA, "desk", "artifact_cat", query, key="k")
        assert "treasure" in str(first.record.results)
        assert again.record.id == first.record.id
        gateway.grants.rows = {("echo", "invoke"): False, ("echo", "discover"): True}

        with pytest.raises(UnknownCall):
            await service.call_tool(ANA, "desk", "artifact_cat", query, key="k")


# --- calls that are cut off ---


@pytest.mark.parametrize(("flags", "status"), [(("writes",), "unknown"), ((), "settled")], ids=["begun", "harmless"])
async def test_call_that_is_cut_off_is_on_record(flags: tuple[str, ...], status: str, tmp_path: Path) -> None:
    door = Door()
    async with running(tmp_path, Plan().tool("pay", door.run, trust=trust(*flags))) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        call = asyncio.create_task(gateway.service.call_in_turn(turn, "pay", {}, id="c1"))
        await door.inside.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        record = await gateway.store.find_call("c1", ANA)

        assert record is not None
        assert record.status == status
        assert record.is_error or status == "unknown"


async def test_key_of_a_call_with_an_unknown_end_does_not_run_again(tmp_path: Path) -> None:
    door = Door()
    async with running(tmp_path, Plan().tool("pay", door.run, trust=trust("writes"))) as gateway:
        call = asyncio.create_task(gateway.service.call_tool(ANA, "desk", "pay", {}, key="k"))
        await door.inside.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        door.open.set()
        with pytest.raises(IdempotencyConflict, match="not known"):
            await gateway.service.call_tool(ANA, "desk", "pay", {}, key="k")

    assert door.runs == 1


# --- results ---


async def test_result_is_readable_by_its_caller_while_a_row_or_the_call_allows_it(tmp_path: Path) -> None:
    async with running(tmp_path, Plan().tool("echo", "x")) as gateway:
        made = (await gateway.service.call_tool(ANA, "desk", "echo", {})).record
        record = await find_stored(gateway, made.id)
        errors = []
        for rows in (
            {},
            {("echo", "invoke"): False},
            {("echo", "invoke"): False, ("echo", "read"): True},
            {("echo", "read"): False},
        ):
            gateway.grants.rows = rows
            errors.append(gateway.service.may_read(ANA, record))
        gateway.grants.rows = {}
        errors.append(gateway.service.may_read(EVE, record))
        gateway.plan.tools.clear()
        gateway.publish()
        errors.append(gateway.service.may_read(ANA, record))

    assert errors == [True, False, True, False, False, False]


async def test_result_of_a_class_that_is_kept_briefly_is_gone_for_queries(tmp_path: Path) -> None:
    brief = ArtifactClass("brief", SpooledJsonArtifact, HERE, retain=timedelta(0))
    async with running(tmp_path, Plan(artifacts={"brief": brief}).tool("echo", "{}", artifact="brief")) as gateway:
        made = (await gateway.service.call_tool(ANA, "desk", "echo", {})).record
        assert not gateway.service.may_read(ANA, await find_stored(gateway, made.id))
        query = await gateway.service.call_tool(ANA, "desk", "artifact_cat", {"callId": made.id})

    assert query.record.is_error


@pytest.mark.parametrize("about", ["another's", "another catalogue's", "an error", "nothing", 3], ids=str)
async def test_query_about_what_is_no_artifact_of_the_caller_is_an_invalid_argument(about: Any, tmp_path: Path) -> None:
    async def fail(call: Invocation) -> Any:
        raise RuntimeError("no")

    async with running(tmp_path, Plan().tool("echo", "x").tool("fails", fail)) as gateway:
        service = gateway.service
        ids = {
            "another's": (await service.call_tool(BOB, "desk", "echo", {})).record.id,
            "another catalogue's": (await service.call_tool(ANA, "vault", "echo", {})).record.id,
            "an error": (await service.call_tool(ANA, "desk", "fails", {})).record.id,
        }
        answer = await service.call_tool(ANA, "desk", "artifact_cat", {"callId": ids.get(about, about)})

    assert answer.record.is_error
    assert str(answer.record.results) != "x"


async def test_unfinished_calls_cannot_be_found(tmp_path: Path) -> None:
    door = Door()
    async with running(tmp_path, Plan().tool("pay", door.run, trust=trust("writes"))) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        call = asyncio.create_task(gateway.service.call_in_turn(turn, "pay", {}, id="c1"))
        await door.inside.wait()
        for principal in (ANA, BOB):
            with pytest.raises(UnknownCall):
                await gateway.service.find_call(principal, "c1")
        door.open.set()
        await call
        assert (await gateway.service.find_call(ANA, "c1"))[1].id == "c1"


def picture(reader: Any) -> Media:
    return Media.tool_generated("image", mime_type="image/png", filename="a.png", reader=reader)


async def test_media_of_one_call_are_kept_wherever_their_bytes_are(tmp_path: Path) -> None:
    near = picture(InMemoryMediaReader(b"png"))
    far = picture(OpenedMediaReader(lambda: iter([b"f", b"ar"]), 3))
    (tmp_path / "b.png").write_bytes(b"file")
    file = picture(FileMediaReader(tmp_path / "b.png"))
    plan = Plan().tool("near", near).tool("far", far).tool("both", [near, far]).tool("file", file)
    async with running(tmp_path, plan) as gateway:
        made = [(await gateway.service.call_tool(ANA, "desk", name, {})).record for name in plan.tools]
    (tmp_path / "b.png").unlink()
    async with running(tmp_path, plan) as gateway:
        found = [(await gateway.service.find_call(ANA, each.id))[1].results for each in made]
        media: list[Any] = [found[0], found[1], *found[2], found[3]]  # type: ignore[misc]  # a list of media
        contents = [await each.as_bytes() for each in media]

    assert {each.mime_type for each in media} == {"image/png"}
    assert contents == [b"png", b"far", b"png", b"far", b"file"]


@pytest.mark.parametrize("fault", ["raises", "too large", "no bytes"])
async def test_media_that_cannot_be_fetched_fail_no_call(fault: str, tmp_path: Path) -> None:
    def opened() -> Any:
        if fault == "raises":
            raise OSError("the host of the secret pictures does not answer")
        return iter([bytes(1 << 20)] * 65) if fault == "too large" else iter(["text"])

    async with running(tmp_path, Plan().tool("far", picture(OpenedMediaReader(opened, None)))) as gateway:
        made = (await gateway.service.call_tool(ANA, "desk", "far", {})).record
        found = (await gateway.service.find_call(ANA, made.id))[1].results

    assert not made.is_error
    assert isinstance(found, Tokenizable)


async def test_media_elsewhere_are_not_fetched_for_the_record_of_an_open_turn(tmp_path: Path) -> None:
    fetched: list[int] = []

    def fetch() -> Any:
        fetched.append(1)
        return iter([b"far"])

    far = picture(OpenedMediaReader(fetch, 3))
    async with running(tmp_path, Plan().tool("far", far)) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        await gateway.service.call_in_turn(turn, "far", {})

    assert fetched == []


@pytest.mark.parametrize("where", ["elsewhere", "file"])
async def test_media_elsewhere_can_be_read_while_their_turn_is_open(where: str, tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"far")
    reader = FileMediaReader(tmp_path / "b.png") if where == "file" else OpenedMediaReader(lambda: iter([b"far"]), 3)
    far = picture(reader)
    async with running(tmp_path, Plan().tool("far", far)) as gateway:
        turn = await gateway.service.turns.open(ANA, "desk")
        made = (await gateway.service.call_in_turn(turn, "far", {})).record
        found: Any = (await gateway.service.find_call(ANA, made.id))[1].results

        assert await found.as_base64() == "ZmFy"
