"""REST under `/v1`: catalogues, calls, turns, records and artifacts as HTTP resources, for programs and for `curl`."""
