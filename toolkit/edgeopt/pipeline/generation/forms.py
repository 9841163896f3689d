"""The forms of a language model that are tried, with what each is good for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.system.target import Target


@dataclass(frozen=True, slots=True)
class Form:
    """One way to store and compute a model's matrices."""

    name: str
    told: str
    make: Callable[[Model, Target], Outcome]


def _with_wide_head(model: Model, _target: Target) -> Outcome:
    """Return the model in 4 bits, but for the matrix that makes the logits: its errors reach every token directly."""
    graph = Graph.from_model(model)
    value = graph.value(LOGITS)
    node = graph.producer(value)
    return make_weight_only(model, 4, wide=() if node is None else (node.name or "",))


FORMS = (
    Form(
        "w8a8", "INT8, activations rounded as they come", lambda model, target: make_dynamic(model, target.rules_here)
    ),
    Form("w8", "weights in blocks of 8 bits", lambda model, _target: make_weight_only(model, 8)),
    Form("w4+head", "weights in blocks of 4 bits, the head in 8", _with_wide_head),
    Form("w4", "weights in blocks of 4 bits", lambda model, _target: make_weight_only(model, 4)),
)
"""The first is at its best with many tokens at once (long prompts), the others with one (long answers)."""
