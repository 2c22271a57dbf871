"""A process of its own that works on approvals; `test_approval_crashes` starts and kills it.

fill N      ask for N approvals, print their ids, then wait to be killed
grant ID    grant one approval, say so, then wait to be killed
take N      call N times at once, print how many calls may run
"""

import asyncio
import sys
from pathlib import Path

from held_calls import LEA, Clock, Desk, action, desk_at, refund


async def main(path: Path, command: str, argument: str) -> None:
    async with desk_at(path, clock=Clock(), most_pending=1_000_000) as desk:
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
        await asyncio.Event().wait()


async def fill(desk: Desk, count: int) -> None:
    ids = [await desk.pending(refund(action(arguments={"n": n}))) for n in range(count)]
    print(*ids, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
