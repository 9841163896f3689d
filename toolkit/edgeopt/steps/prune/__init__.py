"""The step `prune`: fewer channels and blocks where they cost more time than they are worth."""

from __future__ import annotations

from edgeopt.steps import Step
from edgeopt.steps.prune.step import prune

STEP = Step(
    prune,
    does="channels and blocks that cost more time than they are worth, what is left repaired",
    order=30,
    needs_float=True,
    beside=True,
    is_default=False,
    without="nothing pruned",
)
