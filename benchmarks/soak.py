"""Whether memory stays flat, with the configuration of this repository and limits that refuse nothing.

One gateway serves a mixed load for --minutes: stateless calls, sessions that are opened and left, turns with a handle,
and many small turns. Before it, as many sessions and turns are made as the gateway keeps of one caller. Its resident
memory and that of its children is read every ten seconds; the slope counts from the fifth minute on.

Another gateway, quiet otherwise, shows what conversations take: sessions of 10,000 calls, and 3,000 small turns, at
once and when they have become idle. The gateway drops idle turns from memory after ten minutes; a shorter run needs
--idle to drop them sooner.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from benchmarks.gateways import COMMAND, shipped_gateway
from benchmarks.load import Connection, Load, UnexpectedAnswer, children, in_session, mcp_call, resident, with_handle
from benchmarks.rows import ORDER, TOTAL
from benchmarks.servers import exit_on_sigterm

CALL = mcp_call("price_quote", ORDER, path="/support/mcp", expects=TOTAL)
OPEN_SESSION = in_session("price_quote", ORDER, path="/support/mcp", expects=TOTAL)
OPEN_TURN = with_handle("price_quote", ORDER, catalogue="support", expects=TOTAL)
EVERY = 10.0
"""Seconds between two samples."""
SETTLED = 300.0
"""Seconds after which memory counts."""
MOST = 1_000
"""Sessions, and turns, that the gateway keeps in memory of one caller."""
SESSIONS = 2
SESSION_CALLS = 10_000
SMALL_TURNS = 3_000
TARGET = 5.0
"""Megabytes that a session of so many calls may take."""


def main() -> None:
    if sys.argv[1:2] == ["--impatient"]:
        serve_impatiently(float(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the mixed load lasts")
    parser.add_argument("--idle", type=float, default=600.0, help="seconds until turns are idle; 600 is the gateway's")
    options = parser.parse_args()
    exit_on_sigterm()
    command = COMMAND if options.idle == 600 else (sys.executable, __file__, "--impatient", str(options.idle))
    with (
        ThreadPoolExecutor(len(CALLERS) + 1) as threads,  # ends last: without gateways, its callers end
        shipped_gateway() as (pid, port),
        shipped_gateway(command) as (quiet, quiet_port),
    ):
        list(threads.map(fill_caches, [port] * len(CALLERS)))
        until = time.monotonic() + options.minutes * 60
        callers = [threads.submit(repeat, each, port, until) for each in CALLERS]
        conversations = threads.submit(fill, quiet, quiet_port)
        samples = watch(pid, until)
        show_slope(samples, sum(each.result() for each in callers))
        before, filled, at = conversations.result()
        show_idle(quiet, quiet_port, before, filled, waited=time.monotonic() - at > options.idle)
    if FAILURES:
        print(f"{len(FAILURES)} calls failed; the first: {FAILURES[0]}")
        sys.exit(1)


FAILURES: list[str] = []


def send(connection: Connection, load: Load) -> None:
    """Send a call. One that fails is reported at the end: a long run shows what a short one does not."""
    head, body = connection.exchange(load)
    if not load.is_answered(head, body):
        note_failure(body.decode())


def note_failure(answer: str) -> None:
    FAILURES.append(f"{time.strftime('%H:%M:%S')} {answer[:800]}")


def fill_caches(port: int) -> None:
    """Open a part of the sessions and turns that the gateway keeps of one caller."""
    for caller in (call_in_session, call_in_small_turn):
        with closing(Connection(port)) as connection:
            for _ in range(MOST // len(CALLERS)):
                caller(connection)


def repeat(caller: Callable[[Connection], int], port: int, until: float) -> int:
    """Return the number of calls made."""
    made = 0
    with closing(Connection(port)) as connection:
        while time.monotonic() < until:
            try:
                made += caller(connection)
            except UnexpectedAnswer as answer:
                note_failure(str(answer))
    return made


def call_stateless(connection: Connection) -> int:
    send(connection, CALL)
    return 1


def call_in_session(connection: Connection) -> int:
    """Open a session and leave it without an end."""
    return call_times(connection, OPEN_SESSION, 5)


def call_in_long_session(connection: Connection) -> int:
    return call_times(connection, OPEN_SESSION, 200)


def call_with_handle(connection: Connection) -> int:
    return call_times(connection, OPEN_TURN, 50)


def call_in_small_turn(connection: Connection) -> int:
    return call_times(connection, OPEN_TURN, 2)


def call_times(connection: Connection, start: Callable[[Connection], Load], times: int) -> int:
    load = start(connection)
    for _ in range(times):
        send(connection, load)
    return times


CALLERS = (
    call_stateless,
    call_stateless,
    call_in_session,
    call_in_session,
    call_in_long_session,
    call_with_handle,
    call_in_small_turn,
    call_in_small_turn,
)


def watch(pid: int, until: float) -> list[tuple[float, float]]:
    """Return seconds and megabytes of the samples."""
    began = time.monotonic()
    samples = []
    print(f"{'minutes':>8} {'gateway MB':>12} {'its children MB':>16}")
    while (now := time.monotonic()) < until:
        samples.append((now - began, resident(pid)))
        if len(samples) % 6 == 1:
            beside = sum(map(resident, children(pid)))
            print(f"{samples[-1][0] / 60:8.1f} {samples[-1][1]:12.1f} {beside:16.1f}", flush=True)
        time.sleep(max(0.0, min(EVERY, until - now)))
    return samples


def show_slope(samples: Sequence[tuple[float, float]], calls: int) -> None:
    print(f"\n{calls} calls in {samples[-1][0] / 60:.1f} minutes")
    late = [each for each in samples if each[0] >= SETTLED]
    if len(late) < 6:
        print("no slope: it counts from the fifth minute on, and needs one minute more")
        return
    times, sizes = zip(*late, strict=True)
    slope = statistics.linear_regression(times, sizes).slope
    print(f"memory from the fifth minute on: {slope * 60:+.2f} MB a minute, {min(sizes):.1f} to {max(sizes):.1f} MB")


def fill(pid: int, port: int) -> tuple[float, float, float]:
    """Measure conversations in memory. Return megabytes before and after the small turns, and when they ended."""
    with closing(Connection(port)) as connection:
        for _ in range(1_000):
            call_stateless(connection)
    empty = resident(pid)
    with ThreadPoolExecutor(SESSIONS) as threads:
        list(threads.map(make_session, [port] * SESSIONS))
    before = resident(pid)
    print(f"a session of {SESSION_CALLS} calls: {(before - empty) / SESSIONS:.2f} MB (at most {TARGET:g})", flush=True)
    make_small_turns(port, SMALL_TURNS)
    filled = resident(pid)
    print(f"{SMALL_TURNS} small turns: {(filled - before) / SMALL_TURNS * 1024:.1f} kB each", flush=True)
    return before, filled, time.monotonic()


def make_session(port: int) -> None:
    with closing(Connection(port)) as connection:
        call_times(connection, OPEN_SESSION, SESSION_CALLS)


def make_small_turns(port: int, count: int) -> None:
    with closing(Connection(port)) as connection:
        for _ in range(count):
            call_in_small_turn(connection)


def show_idle(pid: int, port: int, before: float, filled: float, *, waited: bool) -> None:
    if not waited:
        print("the small turns are not idle yet")
        return
    make_small_turns(port, SMALL_TURNS // 10)  # turns are dropped when others come
    idle = resident(pid)
    kept = (idle - before) / SMALL_TURNS * 1024
    print(f"{SMALL_TURNS} small turns after they became idle: {kept:.1f} kB each ({filled:.1f} to {idle:.1f} MB)")


def serve_impatiently(idle: float, words: Sequence[str]) -> None:
    """Be the gateway, with another time until turns are idle."""
    from gateway.__main__ import main as serve
    from gateway.engine.turns import turn_cache

    turn_cache.IDLE_SECONDS = idle  # type: ignore[misc]  # a constant elsewhere
    sys.argv = ["gateway", *words]
    serve()


if __name__ == "__main__":
    main()
