"""The lock file: the definitions of upstreams that are pinned."""
