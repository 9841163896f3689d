"""Where quantization-aware training begins: the forms of a float model that need no training, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.steps.fuse import fuse
from edgeopt.steps.quantize.calibration.findings import NO_GRID_DB, study
from edgeopt.steps.quantize.scheme import open_graph
from edgeopt.steps.quantize.search.make import make_variant
from edgeopt.steps.quantize.search.sources import Sources
from edgeopt.steps.quantize.search.variant import Variant
from edgeopt.steps.simplify import simplify
from edgeopt.system.declared.target import Int8Rules

_EVERYTHING = NO_GRID_DB + 1
"""Only tensors that no grid holds stay in float: what that costs, training wins back."""
_CHECKED = 2
"""Inputs on which a rewritten model must answer the same."""
_REPAIRS = {
    "rounded to nearest": {},
    "rounded with inputs": {"gptq": True},
    "equalized": {"equalization": True},
    "equalized, rounded with inputs": {"equalization": True, "gptq": True},
}
"""Forms in the order of what was done; biases are corrected in all of them."""


@dataclass(frozen=True, slots=True)
class Start:
    """The form that loses least, before any training."""

    how: str
    model: Model
    losses: Mapping[str, float]
    """Losses of all forms, on held-out pictures."""

    @property
    def note(self) -> Note:
        """The note on the starts that were tried."""
        text = ", ".join(f"{how} {loss:.4f}" for how, loss in self.losses.items())
        return Note(NoteKind.CHOICE, f"training goes on from what is {self.how}; held-out loss before it: {text}")


def written_plainly(model: Model, inputs: Sequence[Tensors]) -> Model:
    """Return a model simplified and fused, as it is quantized: the teacher too, so that tensors keep their names."""
    few = list(inputs[:_CHECKED])
    return fuse(simplify(model, {}, few).model, few).model


def integer_forms(model: Model, rules: Int8Rules, inputs: Sequence[Tensors]) -> dict[str, Model]:
    """Return a model with all on integers that may be, by what was done against rounding; those alike once.

    Args:
        model: Float, of `written_plainly`.
        rules: What INT8 form the target runs; pairs of QuantizeLinear and DequantizeLinear are written.
        inputs: Real ones, which choose grids and round.

    Raises:
        UnsupportedError: If a weight is not finite, or the opset is too old.
    """
    sources, models = Sources(model, study(model, open_graph(model), inputs, rules), rules, inputs), dict[str, Model]()
    for how, repairs in _REPAIRS.items():
        variant = Variant(least_db=_EVERYTHING).repaired(**repairs)
        made = make_variant(*sources.of(variant), rules, variant)[0].model
        if made.fingerprint not in {other.fingerprint for other in models.values()}:
            models[how] = made
    return models


def best_start(forms: Mapping[str, Model], loss: Callable[[Model], float]) -> Start:
    """Return the form that loses least on pictures that its grids were not chosen on.

    Args:
        forms: Of `integer_forms`.
        loss: Of a model; NaN counts as the worst.
    """
    losses = {how: float(np.nan_to_num(loss(form), nan=math.inf)) for how, form in forms.items()}
    how = min(losses, key=losses.__getitem__)
    return Start(how, forms[how], losses)
