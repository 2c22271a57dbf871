"""What PostgreSQL's failures mean to whoever calls: which are the store's, and what to do about them."""

from typing import Final

import psycopg

from gateway.errors import StoreUnavailable

FULL: Final = "the disk of the database is full"

_BY_STATE: Final = {
    "25006": ("the database is read-only", "point the connection at the primary server"),
    "25P03": ("the database gave up on a process that did not go on", "look for a gateway that was stopped"),
    "3D000": ("the database does not exist", "create it, or correct the connection of the Storage"),
    "42501": ("the gateway may not use its tables", "grant its role the right to read and write them"),
    "42P01": ("the database is not set up", "run: gateway storage migrate"),
    "42703": ("the database is not set up for this version", "run: gateway storage migrate"),
    "53100": (FULL, "make room; nothing needs to be restarted"),
    "53200": ("the database has too little memory", "give it more memory"),
    "53300": ("the database has no connection free", "raise its max_connections, or run fewer replicas"),
    "53400": ("the database has no connection free", "raise its limits, or run fewer replicas"),
    "55P03": ("another process holds the database for too long", "look for a gateway that was stopped"),
    "57014": ("the database is too slow", "look at its load and its disk"),
}
_BY_CLASS: Final = {
    "08": ("the database cannot be reached", "check that it runs, and the connection of the Storage"),
    "28": ("the database lets the gateway not in", "correct the connection of the Storage"),
    "40": ("the database has too much to do at once", "try again"),
    "53": ("the database is short of something", "look at its log"),
    "57": ("the database is being stopped or started", "wait; nothing needs to be restarted"),
    "58": ("the database's machine failed", "look at its log"),
    "XX": ("the database failed", "look at its log"),
}
_NOT_THERE: Final = _BY_CLASS["08"]


def unavailable(error: psycopg.Error) -> StoreUnavailable | None:
    """What callers are told of a failure that is nobody's fault but the store's; `None` for any other.

    The server's own words may hold values, addresses and names: they stay on the cause.
    """
    state = error.sqlstate
    told = None if state is None else _BY_STATE.get(state) or _BY_CLASS.get(state[:2])
    if told is None and state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        told = _at_the_door(str(error))
    return None if told is None else StoreUnavailable(told[0], help=told[1], cause=error)


def is_locked_out(error: BaseException | None) -> bool:
    """Whether others had the lock for longer than one attempt waits."""
    return isinstance(error, psycopg.Error) and error.sqlstate == "55P03"


def _at_the_door(words: str) -> tuple[str, str]:
    """A connection that was not made tells why in words alone."""
    if "too many clients" in words or "remaining connection slots" in words or "too many connections" in words:
        return _BY_STATE["53300"]
    if "authentication failed" in words or "no password supplied" in words or "pg_hba.conf" in words:
        return _BY_CLASS["28"]
    if 'database "' in words and "does not exist" in words:
        return _BY_STATE["3D000"]
    if "starting up" in words or "shutting down" in words or "recovery" in words:
        return _BY_CLASS["57"]
    return _NOT_THERE
