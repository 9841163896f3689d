"""The step `finetune`: training that heals a pruned or changed model, with the dense one as its teacher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edgeopt.steps import Step

if TYPE_CHECKING:
    from edgeopt.graph.model import Model
    from edgeopt.graph.outcome import Outcome
    from edgeopt.steps._context import Context, Setting


def _make(model: Model, context: Context, setting: Setting) -> Sequence[Outcome]:
    from edgeopt.steps.finetune.step import heal  # NumPy and what trains: not for a help page

    return heal(model, context, setting)


STEP = Step(
    _make,
    does="what prune and activations cost, won back: trained on unlabelled pictures with the original as teacher",
    order=40,
    needs_float=True,
    needs_calibration=True,
    package="torch",
    extra="train",
    is_default=False,
    beside=True,
    heals=True,
)
