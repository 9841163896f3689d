"""Who gets a slot next, and whose prompt goes on next.

1. The highest priority goes first; among equals the one that came first.
2. Who does not fit into the memory that is left waits, and others may overtake it. Who was overtaken so often that it
   is its turn goes before all others, and nobody overtakes it any longer: nobody starves.
3. Of the prompts in slots the one of the highest priority goes on, among equals the one with the least left: a short
   question does not wait for a long text. Every fourth part is that of the prompt that came first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgeopt.runtime.decoding.batching.request import Request

MOST_OVERTAKEN = 8
"""Requests that came later and got a slot before; after so many it is one's turn."""
OLDEST_EVERY = 4
"""Of so many parts of prompts one is that of the oldest."""


def next_admitted(waiting: Sequence[Request], fits: Callable[[Request], bool]) -> Request | None:
    """Return who gets the next free slot; None: nobody who may go fits.

    Args:
        waiting: In any order; who is passed by is counted in `overtaken`.
        fits: Whether the memory that is left holds a request.
    """
    for one in sorted(waiting, key=lambda one: (one.overtaken < MOST_OVERTAKEN, -one.priority, one.order)):
        if fits(one):
            for other in waiting:
                other.overtaken += other.order < one.order
            return one
        if one.overtaken >= MOST_OVERTAKEN:
            return None
    return None


def next_prompt(begun: Sequence[Request], left: Callable[[Request], int], turn: int) -> Request:
    """Return whose prompt goes on.

    Args:
        begun: With a slot and a prompt that is not run whole; one or more.
        left: Tokens of the prompt to run.
        turn: Which part of any prompt this is, counted from 0.
    """
    if turn % OLDEST_EVERY == OLDEST_EVERY - 1:
        return min(begun, key=lambda request: request.order)
    return min(begun, key=lambda request: (-request.priority, left(request), request.order))
