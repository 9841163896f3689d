"""Weights in 16 bits that stay so: OpenVINO would widen them to 32 as it compiles, and pack them in 16 again.

Its own converters mark each `Convert` behind such weights as a decompression, which is left in the graph. A mark is set
in C++ alone, or read from OpenVINO's format; so nodes that have it are read from a graph of them.
"""

from __future__ import annotations

from typing import Any

_TYPES = ("bf16", "f16")
_MARKED = """
<layer id="{weights}" name="weights{weights}" type="Const" version="opset1">
  <data element_type="{kind}" shape="1" offset="0" size="2"/>
  <output><port id="0" precision="{port}"><dim>1</dim></port></output>
</layer>
<layer id="{convert}" name="convert{convert}" type="Convert" version="opset1">
  <data destination_type="f32"/>
  <rt_info><attribute name="decompression" version="0"/></rt_info>
  <input><port id="0" precision="{port}"><dim>1</dim></port></input>
  <output><port id="1" precision="FP32"><dim>1</dim></port></output>
</layer>
<layer id="{result}" name="result{result}" type="Result" version="opset1">
  <input><port id="0" precision="FP32"><dim>1</dim></port></input>
</layer>
"""
_EDGES = """
<edge from-layer="{weights}" from-port="0" to-layer="{convert}" to-port="0"/>
<edge from-layer="{convert}" from-port="1" to-layer="{result}" to-port="0"/>
"""


def keep_short(openvino: Any, model: Any) -> None:
    """Let the weights of products that a model stores in 16 bits stay in 16 bits.

    Other readers would convert them anew in each run: a table of tokens as a whole, for a few of its rows.

    Args:
        openvino: The package.
        model: An `openvino.Model` whose weights in 16 bits are read through a `Convert` to float32; it is altered.
    """
    converts = [
        node for node in model.get_ordered_ops() if node.get_type_name() == "Convert" and _reads_short_weights(node)
    ]
    for kind in _TYPES:
        of_kind = [node for node in converts if _kind(node) == kind]
        for node, marked in zip(of_kind, _marked(openvino, kind, len(of_kind)), strict=True):
            marked.input(0).replace_source_output(node.input_value(0))
            marked.set_friendly_name(node.get_friendly_name())
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(marked.output(0))
    model.validate_nodes_and_infer_types()


def _reads_short_weights(convert: Any) -> bool:
    weights = convert.input_value(0).get_node()
    is_widened = convert.get_output_element_type(0).get_type_name() == "f32"
    is_short = weights.get_type_name() == "Constant" and _kind(convert) in _TYPES
    readers = {reader.get_node().get_type_name() for reader in convert.output(0).get_target_inputs()}
    return is_widened and is_short and readers == {"MatMul"}


def _kind(convert: Any) -> str:
    """Return the type of what a `Convert` reads."""
    return str(convert.input_value(0).get_element_type().get_type_name())


def _marked(openvino: Any, kind: str, count: int) -> list[Any]:
    """Return so many nodes `Convert` that have the mark; their shapes are those of whatever they read next."""
    if not count:
        return []
    places = [{"weights": 3 * i, "convert": 3 * i + 1, "result": 3 * i + 2} for i in range(count)]
    layers = "".join(_MARKED.format(kind=kind, port="BF16" if kind == "bf16" else "FP16", **place) for place in places)
    edges = "".join(_EDGES.format(**place) for place in places)
    graph = f'<net name="marked" version="11"><layers>{layers}</layers><edges>{edges}</edges></net>'
    read = openvino.Core().read_model(graph.encode(), bytes(2))
    return [node for node in read.get_ops() if node.get_type_name() == "Convert"]
