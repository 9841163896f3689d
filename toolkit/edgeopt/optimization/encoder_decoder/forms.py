"""The forms of an encoder and of a decoder that are tried, each part by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.optimization.generation.forms.kinds import WIDE_BLOCK
from edgeopt.passes.store_transposed import store_transposed
from edgeopt.steps.convert.blocks import k_quant
from edgeopt.steps.convert.weight_only import make_weight_only
from edgeopt.steps.quantize.formats.dynamic import make_dynamic
from edgeopt.system.declared.target import Target

FLOAT = "fp32"


@dataclass(frozen=True, slots=True)
class PartForm:
    """One way to store and compute the matrices of a part."""

    name: str
    told: str
    make: Callable[[Model, Target], Outcome]


def _head_of(model: Model) -> tuple[str, ...]:
    graph = Graph.from_model(model)
    node = graph.producer(graph.value(LOGITS))
    while node is not None and node.op_type in ("Add", "Identity", "Cast"):  # Marian adds a bias to its logits
        node = graph.producer(node.inputs[0])
    return (node.name,) if node is not None and node.name else ()


def _with_constant_matrices(model: Model) -> Model:
    """Return a model whose products read constants: a head that is the table of tokens is traced as its transposition.

    Only forms are made of it: in float it would hold the matrix twice.
    """
    graph = Graph.from_model(model)
    return graph.to_model() if store_transposed(graph) else model


def _eight_bits(model: Model, _: Target) -> Outcome:
    return make_weight_only(_with_constant_matrices(model), 8, WIDE_BLOCK, tables=True)


def _four_bits(model: Model, _: Target) -> Outcome:
    return make_weight_only(_with_constant_matrices(model), 4, rounding=k_quant, tables=True)


def _four_bits_but_head(model: Model, _: Target) -> Outcome:
    model = _with_constant_matrices(model)
    return make_weight_only(model, 4, wide=_head_of(model), wide_block=WIDE_BLOCK, rounding=k_quant, tables=True)


_EIGHT = PartForm("w8", "blocks of 128 weights of 8 bits", _eight_bits)
ENCODER_FORMS = (
    PartForm(
        "w8a8",
        "INT8, activations rounded as they come",
        lambda model, target: make_dynamic(model, target.rules_here),
    ),
    _EIGHT,
)
"""The first is at its best with many rows at once (sounds, long texts), the other with few."""
DECODER_FORMS = (
    _EIGHT,
    PartForm("w4", "blocks of 32 of 4 bits, as k-quants", _four_bits),
    PartForm("w4+head", "w4, but the head in 8 bits", _four_bits_but_head),
)
"""One token a run: the fewer bytes of weights, the faster."""
