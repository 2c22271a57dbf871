"""The cost of importing a large OpenAPI document: `python benchmarks/openapi.py [file]`.

Without a file it takes GitHub's, which the tests keep in a cache folder (npm fetches it there on first use).
"""

import argparse
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from gateway.backends.openapi.document import read_document
from gateway.backends.openapi.request_builder import serialize_request
from gateway.backends.openapi.tool_definitions import import_operations
from tests.backends.openapi.real_documents import NotAvailable, real_document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    try:
        data = (given.file or real_document("github")).read_bytes()
    except NotAvailable as reason:
        sys.exit(f"no document: {reason}")
    reading, importing = [], []
    for _ in range(given.rounds):
        began = perf_counter()
        document = read_document(data)
        parsed = perf_counter()
        imported = import_operations(document, lambda found: True)
        reading.append(parsed - began)
        importing.append(perf_counter() - parsed)
    count = len(imported.operations)
    print(f"reading {len(data) / 1e6:.1f} MB: {median(reading):.2f} s")
    print(f"importing {count} operations: {median(importing):.2f} s, {median(importing) / count * 1e3:.2f} ms each")
    simple = next(each for each in imported.operations if not each.input_schema["properties"])
    began = perf_counter()
    for _ in range(10_000):
        serialize_request(simple.request, {})
    print(f"writing a request: {(perf_counter() - began) / 10_000 * 1e6:.1f} µs")


if __name__ == "__main__":
    main()
