"""What users run: calls per second and CPU per call over HTTP, next to a bare ASGI echo and FastMCP doing the same job.

Each server has its own process, one worker, uvicorn with uvloop and httptools; a client in another process keeps a
number of connections busy, with one server at a time, in several rounds. A ratio is the median of the ratios of each
round, because absolute figures depend on the machine. The gateway authenticates, applies its policy to lists and calls,
validates, records durably before it answers, and renders; the references do none of it.

"plain" is a pipeline of gates and a timeout; "shipped" is a copy of this repository's configs/ and policies/ with
limits that refuse nothing. A refusal is compared with an allowed call of the same gateway.
"""

import argparse
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median

from benchmarks.load import Figures, Run, UnexpectedAnswer, measure
from benchmarks.rows import ALLOWED, ECHO, PLACES, REFERENCES, REFUSED, ROWS, NotAvailable, Row, choose_rows
from benchmarks.servers import Served, exit_on_sigterm

Rounds = Sequence[Mapping[str, Figures]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[], metavar="PATTERN", help="rows whose name has one of the texts")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long each server is kept busy in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--list", action="store_true", help="print the names of all rows")
    options = parser.parse_args()
    timed = [row for row in ROWS if row.is_timed]
    if options.list:
        print("\n".join(row.name for row in timed))
        return
    exit_on_sigterm()
    rows = with_references(choose_rows(timed, options.rows))
    with ExitStack() as running:
        served = start_places(rows, running)
        rows = [row for row in rows if row.place in served]
        rounds = [run_round(number, rows, served, options) for number in range(options.rounds)]
    note("")
    print(f"Python {platform.python_version()}, {options.connections} connections, ", end="")
    print(f"{options.rounds} rounds of {options.seconds:g} s each; medians\n")
    print(f"{'what users run':42} {'calls/s':>8} {'CPU µs':>8} {'of echo':>8} {'× FastMCP':>10}", end=" ")
    print(f"{'p50 ms':>8} {'p99 ms':>8}")
    for row in rows:
        show(row, rounds)
    show_refusals(rounds)


def with_references(chosen: Sequence[Row]) -> list[Row]:
    """Put the references that the rows are compared with before them."""
    named = {ECHO.name, *(row.fastmcp for row in chosen)}
    if any(row.name.startswith(REFUSED) for row in chosen):
        chosen = [row for row in ROWS if row in chosen or row.name == ALLOWED]
    return [*(row for row in REFERENCES if row.name in named), *chosen]


def start_places(rows: Sequence[Row], running: ExitStack) -> dict[str, Served]:
    served = {}
    for place in dict.fromkeys(row.place for row in rows):
        note(f"starting: {place}")
        try:
            served[place] = running.enter_context(PLACES[place]())
        except NotAvailable as why:
            note("")
            print(f"without {why}")
    return served


def run_round(
    number: int, rows: Sequence[Row], served: Mapping[str, Served], options: argparse.Namespace
) -> dict[str, Figures]:
    found = {}
    for row in rows:
        note(f"round {number + 1} of {options.rounds}: {row.name}")
        run = Run(*served[row.place], row.conversation)
        try:
            found[row.name] = measure(run, seconds=options.seconds, connections=options.connections)
        except UnexpectedAnswer as answer:
            note("")
            print(f"failed: {row.name}: {answer}\n")
    return found


def note(progress: str) -> None:
    """Replace the line that says what runs."""
    print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)


def show(row: Row, rounds: Rounds) -> None:
    figures = [each[row.name] for each in rounds if row.name in each]
    if not figures:
        return
    print(
        f"{row.name:42} {median(each.per_second for each in figures):8.0f} {median(each.cpu for each in figures):8.0f} "
        f"{compare(row.name, ECHO.name, rounds):>8} {compare(row.name, row.fastmcp, rounds, digits=1):>10} "
        f"{median(each.p50 for each in figures):8.1f} {median(each.p99 for each in figures):8.1f}"
    )


def compare(name: str, reference: str, rounds: Rounds, *, digits: int = 3) -> str:
    ratios = [each[name].per_second / each[reference].per_second for each in rounds if {name, reference} <= {*each}]
    return f"{median(ratios):.{digits}f}" if ratios else "-"


def show_refusals(rounds: Rounds) -> None:
    for name in (row.name for row in ROWS if row.name.startswith(REFUSED)):
        if shares := [each[name].cpu / each[ALLOWED].cpu for each in rounds if {name, ALLOWED} <= {*each}]:
            print(f"{name}: {median(shares):.2f} of the CPU of an allowed call")


if __name__ == "__main__":
    main()
