"""The step `prune`: fewer channels and blocks where they cost more time than they are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeopt.steps import Step
from edgeopt.steps._pruning import NOT_PRUNED

if TYPE_CHECKING:
    from edgeopt.graph.model import Model
    from edgeopt.graph.outcome import Outcome
    from edgeopt.steps._context import Context, Setting


def _make(model: Model, context: Context, setting: Setting) -> Sequence[Outcome]:
    from edgeopt.steps.prune.step import make_pruned  # the whole search: not for a help page

    return make_pruned(model, context, setting)


STEP = Step(
    _make,
    does="channels and blocks that cost more time than they are worth, what is left repaired",
    order=30,
    needs_float=True,
    beside=True,
    without=NOT_PRUNED,
)
