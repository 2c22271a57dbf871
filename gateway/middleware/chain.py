"""What a `call` stage is, and how stages and a backend become one thing to run.

A stage wraps what comes after it: it may refuse, wait, repeat or answer itself. That a call is authorised and has
passed its gates is settled before the chain is entered.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from gateway.governance.ports import Backend, Invocation

Run = Callable[[Invocation], Awaitable[Any]]


class CallStage(Protocol):
    async def __call__(self, call: Invocation, run: Run) -> Any:
        """The call's result. `run` is everything that the stage wraps, and may be run any number of times."""
        ...


def chained(stages: Sequence[CallStage], backend: Backend) -> Run:
    """All of them as one; the first stage is the outermost."""
    run: Run = backend.run
    for stage in reversed(stages):
        run = _around(stage, run)
    return run


def _around(stage: CallStage, run: Run) -> Run:
    begin = stage.__call__  # found once, not in every call

    def wrapped(call: Invocation) -> Awaitable[Any]:
        return begin(call, run)

    return wrapped
