"""Work that was begun ahead gives its result, or raises its error where it is taken."""

from __future__ import annotations

from threading import Event, current_thread

import pytest

from edgeopt.system.processes.in_background import InBackground


def test_it_goes_on_in_a_thread_and_gives_its_result_each_time():
    begun, free = Event(), Event()

    def work() -> str:
        begun.set()
        assert free.wait(30)
        return current_thread().name

    begun_work = InBackground(work)
    assert begun.wait(30), "it does not wait until it is asked for"
    free.set()
    assert begun_work.take() == begun_work.take() == "edgeopt-background"


def test_its_error_is_raised_where_it_is_taken():
    def work() -> None:
        raise ValueError("damaged")

    begun_work = InBackground(work)
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            begun_work.take()
