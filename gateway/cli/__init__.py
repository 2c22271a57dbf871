"""The `gateway` command: one module for each subcommand, named after it.

May import every package. Nothing imports it except `__main__`.
"""
