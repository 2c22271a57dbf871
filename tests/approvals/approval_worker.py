"""A process that works on approvals; `test_crashes` starts and kills it.

fill N      request N approvals, print their ids, then wait to be killed
grant ID    grant one approval, print that, then wait to be killed
take N      call N times at once, print how many calls may run
churn N     request, decide, take, release and let approvals expire, as fast as possible, until killed;
            N distinguishes the rounds
"""

import asyncio
import sys
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

from gateway.model.caller import Principal
from tests.approvals.held_calls import LEA, LEAD, ApprovalFixture, Clock, action, make_approval_fixture, refund


async def main(path: Path, command: str, argument: str) -> None:
    async with make_approval_fixture(path, clock=Clock(), most_pending=1_000_000) as desk:
        match command:
            case "fill":
                await fill(desk, int(argument))
            case "grant":
                print((await desk.approvals.decide(argument, LEA, "grant")).state, flush=True)
            case "take":
                print("ready", flush=True)
                await asyncio.to_thread(sys.stdin.readline)
                standings = await asyncio.gather(*(desk.again() for _ in range(int(argument))))
                print(sum(each.state == "taken" for each in standings), flush=True)
                return
            case "churn":
                print("ready", flush=True)
                await asyncio.gather(*(churn(desk, f"{argument}-{lane}") for lane in range(8)))
        await asyncio.Event().wait()


async def fill(desk: ApprovalFixture, count: int) -> None:
    ids = [await desk.pending(refund(action(arguments={"n": n}))) for n in range(count)]
    print(*ids, flush=True)


async def churn(desk: ApprovalFixture, lane: str) -> None:
    """One approval after the other: used, refused, taken by a cancelled call, void, and expired."""
    leaving = Principal(f"user:{lane}", tenant="acme")
    for number in count():
        desk.directory.roles[leaving.subject] = {LEAD}
        about = [refund(action(arguments={"lane": lane, "n": number, "life": life})) for life in range(5)]
        about[4] = replace(about[4], timeout=timedelta(seconds=1))
        ids = [await desk.pending(each) for each in about]
        for place, id in enumerate(ids[:4]):
            await desk.approvals.decide(id, leaving if place == 3 else LEA, "refuse" if place == 1 else "grant")
        await desk.again(about[0])
        cancelled = asyncio.create_task(desk.again(about[2]))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        del desk.directory.roles[leaving.subject]
        await desk.again(about[3])
        desk.clock.advance(seconds=2)
        await desk.approvals.sweep()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
