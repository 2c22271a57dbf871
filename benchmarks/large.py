"""The cost of a large result through a whole gateway: how fast it is stored, how long the first and the next page of a
search take over REST, how long other queries take, and the additional memory of each.

Targets: a first page within 300 ms, and at most 64 MB more.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MB = 1 << 20
SEARCHES = {
    "history_fetch": {"frequent": "order", "rare": "^a new page", "absent": "nowhere to be found"},
    "numbers_print": {"frequent": "7", "rare": "^[0-9]0{6}7$", "absent": "[0-9]{12}"},
}
SLOW = r"[0-9a-z ]*[0-9a-z][0-9a-z ,:-]{200}x"
QUERIES: dict[str, dict[str, Any]] = {
    "artifact_head": {"n": 1000},
    "artifact_tail": {"n": 1000},
    "artifact_cat": {"start": 1_000_000, "end": 1_001_000},
    "artifact_line_count": {},
    "artifact_byte_length": {},
    "artifact_estimate_tokens": {"encoding": "claude"},
}

Ask = Callable[[str, dict[str, Any]], Awaitable[str]]
"""Query the result with a query tool and its arguments; return the text for the model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests" / "end_to_end"))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), given.bytes))


async def measure(folder: Path, size: int) -> None:
    from tests.end_to_end.server.test_large_results import forget_peak, last_number, memory, query_result, start_shop
    from tests.support.gateways.forkserver import GatewayFork, start_forkserver

    async def timed(gateway: GatewayFork, work: Awaitable[Any]) -> tuple[Any, float, float]:
        """Return the answer, its milliseconds, and the megabytes by which the gateway grew."""
        forget_peak(gateway)
        before, began = memory(gateway), time.perf_counter()
        answer = await work
        return answer, (time.perf_counter() - began) * 1000, (memory(gateway) - before) / MB

    with start_forkserver(folder / "forks") as forks:
        async with start_shop(forks, folder / "gateway") as (gateway, shop, _):
            tools = {"history_fetch": {"bytes": size}, "numbers_print": {"last": last_number(size)}}
            for tool, args in tools.items():
                answered, took, extra = await timed(gateway, shop.rest(tool, args))
                speed = size / MB / took * 1000
                print(f"{tool} {size / MB:.0f} MB in {took / 1000:.1f} s: {speed:.0f} MB/s, {extra:.0f} MB more")
                ask = query_result(shop, answered)
                for name, pattern in {**SEARCHES[tool], "slow": SLOW}.items():
                    page: dict[str, Any] = {"pattern": pattern}
                    for which in ("first", "next"):
                        text, took, extra = await timed(gateway, ask("artifact_grep", page))
                        ends = re.search(r"with fromLine (\d+) to go on", text)
                        share = int(ends[1]) / last_line(text) if ends else 1
                        print(f"  grep {name:9} {which:5} page {row(took, extra)}, searched up to {share:4.0%}")
                        if ends is None:
                            break
                        page["fromLine"] = int(ends[1])
                for name, args in QUERIES.items():
                    _, took, extra = await timed(gateway, ask(name, args))
                    print(f"  {name:26}{row(took, extra)}")


def row(took: float, extra: float) -> str:
    return f"{took:6.0f} ms {extra:3.0f} MB more"


def last_line(text: str) -> int:
    found = re.search(r"before line \d+ of (\d+)", text)
    return int(found[1]) if found else 1


if __name__ == "__main__":
    main()
