"""The throughput of a gateway with five times as many clients as it has room for.

One worker with 32 slots and a queue of 32. First as many clients as slots, without refusals; then five times as many as
slots and queue together: once they wait as long as Retry-After requires, once they retry at once, which clients should
not do. Rounds alternate; a ratio is the median of the ratios of each round. The CPU of an answered call includes that
of refusals: on a shared machine, that ratio is the better measure.

A refusal is timed from the request's first byte to the end of its answer, twice: by the load client, which is late
itself when hundreds of answers come at once, and by another process with a few quiet connections, which is the better
measure. Both share the machine with the gateway.
"""

import argparse
import asyncio
import multiprocessing
import os
import re
import socket
import time
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from threading import Thread
from typing import Any

import uvloop

from benchmarks.gateways import gateway
from benchmarks.load import REST, Busy, Load, cpu_seconds, keep_busy, mcp_call

LOAD = mcp_call("echo")
PLACES = 32
WARM = 2.0
QUIET = 16
"""Connections that only time refusals."""
MOMENT = 0.3
"""Seconds between requests of each: longer than the gateway stops reading from a refused client."""


@dataclass
class Seen:
    """The observations of the clients in one round."""

    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    watched: list[float] = field(default_factory=list)
    """Refusals seen by the quiet process."""
    answered_quietly: int = 0
    """Answered calls of the quiet process: they count as work, too."""
    seconds: float = 0.0
    cpu: float = 0.0
    """CPU seconds of the gateway's processes."""

    @property
    def goodput(self) -> float:
        return self.calls / self.seconds

    @property
    def cost(self) -> float:
        return self.cpu / self.calls

    @property
    def calls(self) -> int:
        return len(self.answered) + self.answered_quietly


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=5, help="how many times as many clients as there is room for")
    options = parser.parse_args()
    os.environ |= {"GATEWAY_MAX_REQUESTS": str(PLACES), "GATEWAY_MAX_QUEUE": str(PLACES)}
    many = 2 * PLACES * options.times
    with gateway(10) as (pid, port):
        run_round(port, PLACES, 1.0, pid=pid, waits=True)
        rounds = [
            (
                run_round(port, PLACES, options.seconds, pid=pid, waits=True),
                run_round(port, many, options.seconds, pid=pid, waits=True),
                run_round(port, many, options.seconds, pid=pid, waits=False),
            )
            for _ in range(options.rounds)
        ]
    names = (f"{PLACES} clients", f"{many} clients that wait", f"{many} clients that do not")
    print(
        f"{'':28} {'answered/s':>10} {'of peak':>8} {'CPU µs':>7} {'of peak':>8} {'refused/s':>10} "
        f"{'p50 ms':>7} {'p99 ms':>7} {'quiet p50':>10} {'p99 ms':>7}"
    )
    for index, name in enumerate(names):
        show(name, [each[index] for each in rounds], [each[0] for each in rounds])


def show(name: str, found: list[Seen], peak: list[Seen]) -> None:
    both = list(zip(found, peak, strict=True))
    rates = median(each.goodput / first.goodput for each, first in both)
    costs = median(first.cost / each.cost for each, first in both)
    refusals = sorted(seconds * 1e3 for each in found for seconds in each.refused) or [0.0]
    watched = sorted(seconds * 1e3 for each in found for seconds in each.watched) or [0.0]
    print(
        f"{name:28} {median(each.goodput for each in found):10.0f} {rates:8.2f} "
        f"{median(each.cost for each in found) * 1e6:7.0f} {costs:8.2f} "
        f"{median(len(each.refused) / each.seconds for each in found):10.0f} "
        f"{refusals[len(refusals) // 2]:7.1f} {refusals[int(len(refusals) * 0.99)]:7.1f} "
        f"{watched[len(watched) // 2]:10.1f} {watched[int(len(watched) * 0.99)]:7.1f}",
        flush=True,
    )


def run_round(port: int, clients: int, seconds: float, *, pid: int, waits: bool) -> Seen:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        seen = runner.run(round_of(port, clients, seconds, pid=pid, waits=waits))
    time.sleep(REST)
    return seen


async def round_of(port: int, clients: int, seconds: float, *, pid: int, waits: bool) -> Seen:
    """Run one round, after a warm-up in which connections open and every client is refused once."""
    seen = Seen()
    results: Any = multiprocessing.Queue()
    watching = multiprocessing.Process(target=watch, args=(port, LOAD.to_wire(port), seconds, results))
    if clients > PLACES:
        watching.start()
    since = time.perf_counter() + WARM
    busy = partial(Client, LOAD, port, (since, since + seconds), seen, waits)
    tasks = [asyncio.create_task(keep_busy(port, busy)) for _ in range(clients)]
    await asyncio.sleep(WARM)
    before = cpu_seconds(pid)
    await asyncio.sleep(since + seconds - time.perf_counter())
    seen.seconds, seen.cpu = seconds, cpu_seconds(pid) - before
    await asyncio.gather(*tasks)
    if clients > PLACES:
        seen.watched, seen.answered_quietly = await asyncio.to_thread(results.get)
        watching.join()
    return seen


def watch(port: int, request: bytes, seconds: float, results: Any) -> None:
    """In another process, time refusals and count answered calls."""
    seen = Seen()
    since = time.perf_counter() + WARM
    threads = [Thread(target=ask_quietly, args=(port, request, since, since + seconds, seen)) for _ in range(QUIET)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    results.put((seen.refused, len(seen.answered)))


def ask_quietly(port: int, request: bytes, since: float, until: float, seen: Seen) -> None:
    with socket.create_connection(("127.0.0.1", port)) as wire, wire.makefile("rb") as answers:
        while (began := time.perf_counter()) < until:
            wire.sendall(request)
            first = answers.readline()
            length = 0
            while (line := answers.readline().lower()) != b"\r\n":
                if line.startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            answers.read(length)
            note(seen, began, (since, until), is_refused=first.startswith(b"HTTP/1.1 503"))
            time.sleep(MOMENT)


def note(seen: Seen, began: float, when: tuple[float, float], *, is_refused: bool) -> None:
    """Record a request that ends within the measured time."""
    ended = time.perf_counter()
    if when[0] <= ended < when[1]:
        (seen.refused if is_refused else seen.answered).append(ended - began)


class Client(Busy):
    def __init__(
        self,
        load: Load,
        port: int,
        when: tuple[float, float],
        seen: Seen,
        waits: bool,
        ended: "asyncio.Future[None]",
    ) -> None:
        super().__init__(load, port, when[1], [], ended)
        self.when = when
        self.seen = seen
        self.waits = waits

    def answered(self, head: bytes, body: bytes) -> None:
        is_refused = head.startswith(b"HTTP/1.1 503")
        note(self.seen, self.began, self.when, is_refused=is_refused)
        if is_refused and self.waits and (after := re.search(rb"retry-after: (\d+)", head)):
            left = max(0.0, self.until - time.perf_counter())
            asyncio.get_running_loop().call_later(min(int(after[1]), left), self.send)
        elif is_refused:
            self.send()
        else:
            super().answered(head, body)


if __name__ == "__main__":
    main()
