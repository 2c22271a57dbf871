"""Log lines: one for each record, safe to display, and without contents from errors or other libraries."""

import errno
import json
import logging
import sqlite3
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.call import Call, call_context
from gateway.errors import GatewayError, StoreUnavailable
from gateway.model.caller import Principal
from gateway.telemetry.logs import LONGEST, JsonLogFormatter, TextLogFormatter, log_fields

CANARY = "canary-4711"
FORMATS = [pytest.param(JsonLogFormatter(), id="json"), pytest.param(TextLogFormatter(), id="text")]


def record(message: str, *args: Any, error: BaseException | None = None, name: str = "gateway.x") -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(name, logging.ERROR, __file__, 1, message, args, info)


def raise_and_catch(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException:
        found = sys.exc_info()[1]
    assert found is not None
    return found


def test_fields_of_a_plain_record() -> None:
    fields = log_fields(record("sweeping waits: %s", "the disk is full"))

    assert fields.pop("time").endswith("Z")
    assert fields == {"level": "error", "logger": "gateway.x", "message": "sweeping waits: the disk is full"}


def test_call_that_is_being_served_is_named() -> None:
    call = Call("c1", "quote", {"text": CANARY}, Principal("user:ana"), "shop", "r1")

    with call_context(call):
        fields = log_fields(record("something"))

    assert (fields["callId"], fields["tool"]) == ("c1", "quote")
    assert CANARY not in str(fields)
    assert "callId" not in log_fields(record("something"))


@pytest.mark.parametrize("lines", FORMATS)
@pytest.mark.parametrize(
    "error",
    [
        ValueError(CANARY),
        KeyError(CANARY),
        GatewayError("safe", cause=RuntimeError(CANARY)),
        OSError(errno.ENOSPC, CANARY, CANARY),
        ExceptionGroup(CANARY, [ValueError(CANARY)]),
        type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})(CANARY),
    ],
    ids=["value", "key", "cause", "os", "group", "unprintable"],
)
def test_text_of_errors_that_are_not_ours_is_left_out(error: Exception, lines: logging.Formatter) -> None:
    line = lines.format(record("a request failed", error=raise_and_catch(error)))

    assert CANARY not in line
    assert type(error).__name__ in line
    assert "test_logs.py" in line


def test_message_and_code_of_our_errors_are_logged() -> None:
    fields = log_fields(record("failed", error=raise_and_catch(StoreUnavailable("the disk is full", help="make room"))))

    assert fields["error"]["code"] == "E_STORE_UNAVAILABLE"
    assert fields["error"]["message"] == "the disk is full"


def test_errors_of_the_system_and_of_sqlite_have_their_names() -> None:
    full = log_fields(record("failed", error=raise_and_catch(OSError(errno.ENOSPC, "x"))))
    with pytest.raises(sqlite3.OperationalError) as caught:
        sqlite3.connect(":memory:").execute(f"SELECT '{CANARY}' FROM missing")
    missing = log_fields(record("failed", error=caught.value))

    assert full["error"]["code"] == "ENOSPC"
    assert missing["error"]["code"] == "SQLITE_ERROR"


def test_causes_are_logged_by_their_types_and_end() -> None:
    first, second = ValueError(CANARY), KeyError(CANARY)
    first.__cause__, second.__cause__ = second, first

    fields = log_fields(record("failed", error=first))

    assert [each["type"] for each in fields["error"]["causes"]] == ["KeyError"]


def test_of_other_libraries_only_the_first_line_without_values_is_logged() -> None:
    fields = log_fields(record("Task exception was never retrieved\nfuture: <%s>", CANARY, name="asyncio"))

    assert fields["message"] == "Task exception was never retrieved"


def test_wrong_arguments_of_a_record_are_no_error() -> None:
    assert log_fields(record("%d of %d", "x"))["message"] == "%d of %d"


@pytest.mark.parametrize("lines", FORMATS)
@given(text=st.text())
def test_every_record_is_one_printable_line(lines: logging.Formatter, text: str) -> None:
    line = lines.format(record("%s", text, name=f"gateway.{text}"))

    assert line.isprintable()


@pytest.mark.parametrize("lines", FORMATS)
def test_escape_sequences_reach_no_terminal(lines: logging.Formatter) -> None:
    line = lines.format(record("upstream %s", "\x1b]0;owned\x07\u202e\nlevel=error"))

    assert line.isprintable()
    assert "owned" in line


def test_long_message_is_cut() -> None:
    assert len(log_fields(record("x" * 10_000_000))["message"]) == LONGEST + 1


def test_json_line_is_json() -> None:
    assert json.loads(JsonLogFormatter().format(record('a "quoted" \\ text')))["message"] == 'a "quoted" \\ text'
