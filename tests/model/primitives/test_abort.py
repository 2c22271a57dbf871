"""Abort controllers and signals: order, chaining, unsubscribing and listeners that misbehave."""

import pytest

from gateway.model.primitives.concurrency import AbortController, AbortSignal


def failing(error: Exception) -> None:
    raise error


def test_signal_starts_unaborted() -> None:
    signal = AbortController().signal

    assert (signal.aborted, signal.reason) == (False, None)


def test_abort_shows_the_reason() -> None:
    controller = AbortController()

    controller.abort("enough")

    assert (controller.signal.aborted, controller.signal.reason) == (True, "enough")


def test_listeners_run_once_in_order() -> None:
    controller = AbortController()
    seen: list[str] = []
    controller.signal.on_abort(lambda: seen.append("first"))
    controller.signal.on_abort(lambda: seen.append("second"))

    controller.abort()
    controller.abort()

    assert seen == ["first", "second"]


def test_second_abort_keeps_the_first_reason() -> None:
    controller = AbortController()

    controller.abort("first")
    controller.abort("second")

    assert controller.signal.reason == "first"


def test_listener_of_the_past_runs_at_once() -> None:
    controller = AbortController()
    controller.abort()
    seen: list[str] = []

    unsubscribe = controller.signal.on_abort(lambda: seen.append("late"))
    unsubscribe()

    assert seen == ["late"]


def test_unsubscribed_listener_is_not_called() -> None:
    controller = AbortController()
    seen: list[str] = []
    unsubscribe = controller.signal.on_abort(lambda: seen.append("gone"))
    controller.signal.on_abort(lambda: seen.append("stays"))

    unsubscribe()
    unsubscribe()
    controller.abort()

    assert seen == ["stays"]


def test_same_function_may_listen_twice() -> None:
    controller = AbortController()
    seen: list[int] = []

    def listen() -> None:
        seen.append(1)

    unsubscribe = controller.signal.on_abort(listen)
    controller.signal.on_abort(listen)
    unsubscribe()
    controller.abort()

    assert seen == [1]


def test_listener_may_unsubscribe_one_behind_it() -> None:
    controller = AbortController()
    seen: list[str] = []
    controller.signal.on_abort(lambda: unsubscribe())
    unsubscribe = controller.signal.on_abort(lambda: seen.append("gone"))

    controller.abort()

    assert seen == []


def test_listener_added_while_aborting_runs() -> None:
    controller = AbortController()
    seen: list[str] = []

    def subscribe() -> None:
        controller.signal.on_abort(lambda: seen.append("inner"))

    controller.signal.on_abort(subscribe)
    controller.abort()

    assert seen == ["inner"]


def test_failing_listener_does_not_stop_the_others() -> None:
    controller = AbortController()
    seen: list[str] = []
    boom = ValueError("boom")
    controller.signal.on_abort(lambda: failing(boom))
    controller.signal.on_abort(lambda: seen.append("told"))

    with pytest.raises(ExceptionGroup) as caught:
        controller.abort("enough")

    assert seen == ["told"]
    assert caught.value.exceptions == (boom,)
    assert controller.signal.reason == "enough"


def test_parent_aborts_its_children() -> None:
    parent = AbortController()
    child = AbortController(parent.signal)
    grandchild = AbortController(child.signal)

    parent.abort("enough")

    assert (grandchild.signal.aborted, grandchild.signal.reason) == (True, "enough")


def test_child_does_not_abort_its_parent() -> None:
    parent = AbortController()
    child = AbortController(parent.signal)

    child.abort("mine")
    parent.abort("theirs")

    assert child.signal.reason == "mine"
    assert parent.signal.reason == "theirs"


def test_child_of_an_aborted_parent_is_born_aborted() -> None:
    parent = AbortController()
    parent.abort("enough")

    child = AbortController(parent.signal)

    assert (child.signal.aborted, child.signal.reason) == (True, "enough")


def test_failing_child_does_not_spare_its_siblings() -> None:
    parent = AbortController()
    first, second = AbortController(parent.signal), AbortController(parent.signal)
    first.signal.on_abort(lambda: failing(ValueError("boom")))

    with pytest.raises(ExceptionGroup):
        parent.abort()

    assert second.signal.aborted


def test_released_child_no_longer_follows() -> None:
    parent = AbortController()
    child = AbortController(parent.signal)

    child.release()
    child.release()
    parent.abort()

    assert not child.signal.aborted


def test_release_without_a_parent_does_nothing() -> None:
    controller = AbortController()

    controller.release()
    controller.abort()

    assert controller.signal.aborted


def test_signal_alone_never_aborts() -> None:
    assert not hasattr(AbortSignal, "abort")
