"""Observing must not be noticed: whatever goes wrong in it is on the operator's log, and nowhere else."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_log: Final = logging.getLogger(__name__)


def silently(observe: Callable[P, R]) -> Callable[P, R]:
    """`None` where it fails."""

    @wraps(observe)
    def observing(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return observe(*args, **kwargs)
        except Exception as error:
            unnoticed(error, observe.__qualname__)
            nothing: Any = None
            return nothing  # type: ignore[no-any-return]  # whoever calls does without

    return observing


def unnoticed(error: Exception, where: str) -> None:
    """Told without its text, which may be content. What every call passes calls this itself: being wrapped costs."""
    _log.error("an observer failed: %s in %s", type(error).__name__, where)
