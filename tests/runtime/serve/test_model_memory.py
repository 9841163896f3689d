"""Memory that several models share: who is closed for whom, who waits, and that nobody starves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic, sleep

import pytest
from served import until

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.model_memory import MemoryNeeds, ModelMemory
from edgeopt.runtime.serve.refused import RefusedError

_MIB = 1 << 20


class Weights:
    """A model of 600 MiB, as it says; together with another one it is too large for the room."""

    needs = MemoryNeeds(600 * _MIB)
    open_now = 0
    most_open = 0

    def __init__(self) -> None:
        Weights.open_now += 1
        Weights.most_open = max(Weights.most_open, Weights.open_now)

    def close(self) -> None:
        Weights.open_now -= 1


@pytest.fixture(autouse=True)
def nothing_open() -> None:
    Weights.open_now = Weights.most_open = 0


def holders(room: ModelMemory, count: int) -> list[Holder[Weights]]:
    return [Holder(Weights, place=room.place(f"m{i}", MemoryNeeds(600 * _MIB))) for i in range(count)]


@contextmanager
def using(holder: Holder[Weights]) -> Iterator[Event]:
    """Use a model in a thread until the event is set, at the latest at the end of the block."""
    done, began = Event(), Event()

    def use() -> None:
        with holder.held():
            began.set()
            done.wait(30)

    thread = Thread(target=use)
    thread.start()
    assert began.wait(30)
    try:
        yield done
    finally:
        done.set()
        thread.join(30)


def test_the_one_that_was_used_least_recently_goes_and_only_as_many_as_needed():
    room = ModelMemory(1300 * _MIB)
    a, b, c = holders(room, 3)
    assert [each.is_loaded for each in (a, b, c)] == [False, True, True]
    with b.held():
        pass
    with a.held():
        assert [each.is_loaded for each in (a, b, c)] == [True, True, False]
    assert Weights.most_open == 2
    assert [each.loads for each in (a, b, c)] == [2, 1, 1]


def test_a_model_that_is_answering_is_waited_for():
    a, b = holders(ModelMemory(700 * _MIB), 2)
    with using(a) as done:
        began = Event()

        def ask() -> None:
            with b.held():
                began.set()

        waits = Thread(target=ask)
        waits.start()
        assert not began.wait(0.3)
        assert a.is_loaded
        done.set()
        assert began.wait(30)
        waits.join(30)
    assert (a.is_loaded, b.is_loaded) == (False, True)
    assert Weights.most_open == 1


def test_a_model_that_is_always_busy_starves_nobody():
    room = ModelMemory(700 * _MIB)
    a, b = holders(room, 2)
    over, asked = Event(), list[int]()

    def keep_busy() -> None:
        while not over.is_set():
            with a.held():
                asked.append(1)
                sleep(0.02)

    users = [Thread(target=keep_busy) for _ in range(3)]  # one of them is always at it
    for user in users:
        user.start()
    try:
        until(lambda: len(asked) > 5)
        for _ in range(3):
            with b.held():
                assert Weights.open_now == 1
            count = len(asked)
            until(lambda: len(asked) > count)  # noqa: B023, in this round
    finally:
        over.set()
        for user in users:
            user.join(30)
    assert Weights.most_open == 1
    assert b.loads >= 3


def test_who_waits_too_long_is_refused_and_the_busy_model_goes_on():
    a, b = holders(ModelMemory(700 * _MIB, patience_s=0.2), 2)
    with using(a):
        with pytest.raises(RefusedError) as refused, b.held():
            pass
        assert (refused.value.status, refused.value.code) == (503, "memory_timeout")
        with using(a):  # it is no longer about to go
            assert a.is_loaded


def test_what_cannot_fit_is_refused_at_once():
    with pytest.raises(EdgeoptError, match=r"big takes 800\.00 MiB of memory, more than --memory 700\.00 MiB"):
        ModelMemory(700 * _MIB).place("big", MemoryNeeds(800 * _MIB))
    room = ModelMemory(500 * _MIB)
    with pytest.raises(EdgeoptError, match=r"m takes 600\.00 MiB"):  # its cache is known when it is open
        Holder(Weights, place=room.place("m", MemoryNeeds(1)))
    assert Weights.open_now == 0
    with pytest.raises(EdgeoptError, match="it broke"):
        Holder(_broken, place=room.place("n", MemoryNeeds(500 * _MIB)))
    Holder(Small, place=room.place("o", MemoryNeeds(500 * _MIB)))  # what broke left its memory


class Small:
    """A model that says nothing of its memory."""

    def close(self) -> None:
        """Nothing is held."""


def _broken() -> Small:
    raise EdgeoptError("it broke", remedy="copy it again")


def test_a_model_that_was_let_go_leaves_its_memory():
    room = ModelMemory(700 * _MIB)
    a = Holder(Weights, 0.0, room.place("a", MemoryNeeds(600 * _MIB)))
    assert a.free_if_idle()
    b = Holder(Weights, None, room.place("b", MemoryNeeds(600 * _MIB)))
    assert (b.is_loaded, Weights.most_open) == (True, 1)


def test_a_server_that_ends_lets_nobody_wait():
    room = ModelMemory(700 * _MIB, patience_s=60)
    a, b = holders(room, 2)
    with using(a):
        refused = list[RefusedError]()

        def ask() -> None:
            try:
                with b.held():
                    pass
            except RefusedError as error:
                refused.append(error)

        waits = Thread(target=ask)
        begun = monotonic()
        waits.start()
        sleep(0.1)
        room.close()
        waits.join(30)
        assert [each.code for each in refused] == ["server_ends"]
        assert monotonic() - begun < 30
