"""Observing must not be noticed: whatever goes wrong in it is on the operator's log, and nowhere else."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_log: Final = logging.getLogger(__name__)


def silently(observe: Callable[P, R]) -> Callable[P, R]:
    """`None` where it fails. Types of failures are told, not their texts: those may be content."""

    @wraps(observe)
    def observing(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return observe(*args, **kwargs)
        except Exception as error:
            _log.error("an observer failed: %s in %s", type(error).__name__, observe.__qualname__)
            nothing: Any = None
            return nothing  # type: ignore[no-any-return]  # whoever calls does without

    return observing
