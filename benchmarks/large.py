"""What a large result costs, through a whole gateway: how fast it is kept, how much memory that takes beyond what the
process has anyway, and how long a search through it is over REST.

There is no first page of a search: the query tool `artifact_grep` answers with every line that matches.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
MB = 1 << 20
SEARCHES = {"rare literal": "^a new page", "nothing": "nowhere to be found", "a class": "[0-9]{9}x"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests" / "end_to_end"))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measured(Path(folder), given.bytes))


async def measured(folder: Path, size: int) -> None:
    from forked import forking
    from test_large import forget_peak, grep, last_number, memory, serving

    with forking(folder / "forks") as forks:
        async with serving(forks, folder / "gateway") as (gateway, shop, _):
            tools = {"history_fetch": {"bytes": size}, "numbers_print": {"last": last_number(size)}}
            for tool, args in tools.items():
                forget_peak(gateway)
                before, began = memory(gateway), time.perf_counter()
                answered = await shop.rest(tool, args)
                took = time.perf_counter() - began
                extra = (memory(gateway) - before) / MB
                speed = size / MB / took
                print(f"{tool:14} {size / MB:6.0f} MB in {took:5.1f} s: {speed:4.0f} MB/s, {extra:3.0f} MB more")
                for name, pattern in SEARCHES.items():
                    forget_peak(gateway)
                    before, began = memory(gateway), time.perf_counter()
                    await grep(shop, answered, pattern)
                    took = (time.perf_counter() - began) * 1000
                    print(f"  grep {name:13} {took:6.0f} ms, {(memory(gateway) - before) / MB:3.0f} MB more")


if __name__ == "__main__":
    main()
