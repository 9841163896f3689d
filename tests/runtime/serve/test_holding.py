"""The holder of a model stands between it and requests: who opens and frees it, who waits for a slot."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from edgeopt.errors import EdgeoptError
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.request_queue import RequestQueue
from edgeopt.runtime.serve.watching.tally import Tally


class Opened:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_broken_model_is_freed_by_its_own_last_user():
    made = list[Opened]()

    def opened() -> Opened:
        made.append(Opened())
        return made[-1]

    holder = Holder(opened)
    first = holder.held()
    first.__enter__()
    with pytest.raises(EdgeoptError), holder.held():
        raise EdgeoptError("it broke", remedy="ask again")
    with holder.held() as second:
        assert second is made[1]
        assert not made[0].is_closed  # one is still at it
        first.__exit__(None, None, None)
        assert made[0].is_closed
    assert not made[1].is_closed
    holder.close()
    assert made[1].is_closed


def test_a_slot_is_handed_on_where_who_waited_leaves_in_the_same_moment():
    async def run() -> None:
        tally = Tally("m", ("a",), Holder(Opened))
        line = RequestQueue(Limits(slots=1, seconds=60), tally)
        await line.enter(monotonic() + 60)
        waits = asyncio.create_task(line.enter(monotonic() + 60))
        await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        loop.call_soon(waits.cancel)
        loop.call_soon(line.leave)
        await asyncio.wait_for(loop.create_task(line.enter(monotonic() + 60)), 30)
        assert tally.running == 1
        assert tally.waiting == 0

    asyncio.run(run())


def test_prompts_are_scored_in_turn_and_others_go_past_them():
    async def run() -> None:
        tally = Tally("m", ("a",), Holder(Opened))
        line = RequestQueue(Limits(slots=2, seconds=60), tally)
        first, second, third = object(), object(), object()
        await line.enter(monotonic() + 60, 0, first)
        waits = [asyncio.create_task(line.enter(monotonic() + 60, 0, key)) for key in (second, third)]
        await asyncio.sleep(0.01)
        await asyncio.wait_for(line.enter(monotonic() + 60), 30)
        assert (tally.running, tally.waiting) == (2, 2)
        line.leave()  # the chat: its slot stays free
        await asyncio.sleep(0.01)
        assert (tally.running, tally.waiting) == (1, 2)
        line.scored(first)
        waits[0].cancel()  # in the moment in which its turn comes: the next has it
        await asyncio.wait_for(waits[1], 30)
        for key in (first, second):
            line.scored(key)  # late, and of nobody
        line.scored(third)
        assert (tally.running, tally.waiting) == (2, 0)
        line.leave()
        line.leave()
        assert (tally.running, line.is_quiet) == (0, True)

    asyncio.run(run())


def test_a_refusal_can_be_sent_whatever_the_request_named():
    refused = RefusedError(400, "no field '\ud800' is known", code="unknown", param="\ud800")
    assert refused.message.encode()
    assert str(refused.param).encode()
