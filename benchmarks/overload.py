"""What is left of a gateway's speed when five times as many clients come as it has room for.

One worker with 32 places and a line of 32. First as many clients as there are places, which nobody is refused for; then
five times as many as places and line together: once they wait as long as Retry-After says, once they do not and
send again at once, which nobody should do. Rounds alternate; a ratio is the median of the ratios of each round.
A refusal is timed from the request's last byte to the end of its answer, by a client that shares the machine.
"""

import argparse
import asyncio
import os
import re
import time
from dataclasses import dataclass, field
from statistics import median

from serving import GATEWAY_LOADS, gateway, read_body, wire_request

PLACES = 32


@dataclass
class Seen:
    """What clients saw in one round."""

    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def goodput(self) -> float:
        return len(self.answered) / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=5, help="how many times as many clients as there is room for")
    options = parser.parse_args()
    os.environ |= {"GATEWAY_MAX_REQUESTS": str(PLACES), "GATEWAY_MAX_QUEUE": str(PLACES)}
    many = 2 * PLACES * options.times
    with gateway(10) as (_, port):
        asyncio.run(round_of(port, PLACES, 1.0, waits=True))
        rounds = [
            (
                asyncio.run(round_of(port, PLACES, options.seconds, waits=True)),
                asyncio.run(round_of(port, many, options.seconds, waits=True)),
                asyncio.run(round_of(port, many, options.seconds, waits=False)),
            )
            for _ in range(options.rounds)
        ]
    names = (f"{PLACES} clients", f"{many} clients that wait", f"{many} clients that do not")
    print(f"{'':30} {'answered/s':>10} {'of peak':>8} {'refused/s':>10} {'refusal p50':>12} {'p99':>8}")
    for index, name in enumerate(names):
        show(name, [each[index] for each in rounds], [each[0] for each in rounds])


def show(name: str, found: list[Seen], peak: list[Seen]) -> None:
    ratio = median(each.goodput / first.goodput for each, first in zip(found, peak, strict=True))
    refusals = sorted(seconds for each in found for seconds in each.refused)
    rate = median(len(each.refused) / each.seconds for each in found)
    times = (
        f"{refusals[len(refusals) // 2] * 1e3:9.1f} ms {refusals[int(len(refusals) * 0.99)] * 1e3:5.1f} ms"
        if refusals
        else ""
    )
    print(f"{name:30} {median(each.goodput for each in found):10.0f} {ratio:8.2f} {rate:10.0f} {times}", flush=True)


async def round_of(port: int, clients: int, seconds: float, *, waits: bool) -> Seen:
    seen = Seen()
    request = wire_request(port, GATEWAY_LOADS["MCP tools/call"])
    began = time.perf_counter()
    await asyncio.gather(*(client(port, request, began + seconds, seen, waits=waits) for _ in range(clients)))
    seen.seconds = seconds
    return seen


async def client(port: int, request: bytes, until: float, seen: Seen, *, waits: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (started := time.perf_counter()) < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await read_body(reader, head.lower())
        took = time.perf_counter() - started
        if head.startswith(b"HTTP/1.1 503"):
            seen.refused.append(took)
            after = re.search(rb"retry-after: (\d+)", head)
            await asyncio.sleep(int(after[1]) if waits and after else 0)
        elif time.perf_counter() < until:
            seen.answered.append(took)
    writer.close()


if __name__ == "__main__":
    main()
