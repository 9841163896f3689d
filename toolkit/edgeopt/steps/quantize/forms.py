"""The forms in which integers are written into a graph, and what writes each: a file in `formats/`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum

from edgeopt.graph.graph import Graph, Node
from edgeopt.steps.quantize.formats.dynamic import place_dynamic
from edgeopt.steps.quantize.formats.inputs_only import place_inputs, readers_of, tensors_read
from edgeopt.steps.quantize.formats.matmul_integer import plain_products
from edgeopt.steps.quantize.formats.nhwc import lowered_layers, place_nhwc, rounded_tensors
from edgeopt.steps.quantize.formats.qdq import place_qdq, quantized_tensors
from edgeopt.steps.quantize.keep_float.islands import float_island
from edgeopt.steps.quantize.scheme import Scheme


class Form(StrEnum):
    """How integers are written into the graph."""

    QDQ = "qdq"
    """Pairs of QuantizeLinear and DequantizeLinear: every engine reads them."""
    NHWC = "nhwc"
    """ONNX Runtime's own integer ops: for its CPU kernels only, and faster there."""
    INPUTS = "inputs"
    """Pairs on what weighted layers read, and nowhere else: the form that OpenVINO runs fast."""
    DYNAMIC = "dynamic"
    """Matrix products on grids that are found as the model runs; convolutions in float. For ONNX Runtime, LiteRT and
    ExecuTorch."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A writer of one form, and the facts that it needs before."""

    place: Callable[[Graph, Scheme], Mapping[str, int]]
    """Write a scheme into a graph, in place; return how often what was rewritten."""
    tensors: Callable[[Graph, Scheme], Collection[str]]
    """Return the names of the tensors that it rounds to integers."""
    island: Callable[[Graph, Set[str]], Set[Node]] = float_island
    """Return the nodes that stay float because of tensors, given by name, that must not be rounded."""
    layers: Callable[[Graph], Collection[Node]] | None = None
    """Return the weighted nodes that it has integers for; None: it has them for all."""
    only: str = ""
    """Those nodes in words."""
    stores_grids: bool = True
    """Whether it writes the grids that calibration chose; if not, no way of choosing them changes what it writes."""


WRITERS: Mapping[Form, Writer] = {
    Form.QDQ: Writer(place_qdq, quantized_tensors),
    Form.NHWC: Writer(
        place_nhwc, rounded_tensors, layers=lowered_layers, only="convolutions of pictures and plain matrix products"
    ),
    Form.INPUTS: Writer(place_inputs, tensors_read, island=readers_of),
    Form.DYNAMIC: Writer(
        place_dynamic,
        tensors_read,
        island=readers_of,
        layers=plain_products,
        only="plain matrix products",
        stores_grids=False,
    ),
}
