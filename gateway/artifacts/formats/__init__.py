"""One module for each format of an artifact; parsers load on first use."""
