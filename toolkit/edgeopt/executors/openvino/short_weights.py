"""Weights in bfloat16 that stay so: OpenVINO would widen them to 32 bits as it compiles, and pack them in 16 again.

Its own converters mark each `Convert` behind such weights as a decompression, which is left in the graph. A mark is set
in C++ alone, or read from OpenVINO's format; so nodes that have it are read from a graph of them.
"""

from __future__ import annotations

from typing import Any

_MARKED = """
<layer id="{weights}" name="weights{weights}" type="Const" version="opset1">
  <data element_type="bf16" shape="1" offset="0" size="2"/>
  <output><port id="0" precision="BF16"><dim>1</dim></port></output>
</layer>
<layer id="{convert}" name="convert{convert}" type="Convert" version="opset1">
  <data destination_type="f32"/>
  <rt_info><attribute name="decompression" version="0"/></rt_info>
  <input><port id="0" precision="BF16"><dim>1</dim></port></input>
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
    """Let the weights of products that a model stores in bfloat16 stay so. No number is another for it.

    float16 would be, where products are in bfloat16: it is rounded twice. Other readers than products would convert
    weights anew in each run: a table of tokens as a whole, for a few of its rows.

    Args:
        openvino: The package.
        model: An `openvino.Model` whose weights are read through a `Convert` to float32; it is altered.
    """
    converts = [node for node in model.get_ordered_ops() if node.get_type_name() == "Convert" and _is_of_weights(node)]
    for node, marked in zip(converts, _marked(openvino, len(converts)), strict=True):
        marked.input(0).replace_source_output(node.input_value(0))
        marked.set_friendly_name(node.get_friendly_name())
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(marked.output(0))
    model.validate_nodes_and_infer_types()


def _is_of_weights(convert: Any) -> bool:
    """Return whether a `Convert` widens the weights of products, their second input."""
    weights = convert.input_value(0)
    types = weights.get_element_type().get_type_name(), convert.get_output_element_type(0).get_type_name()
    readers = {
        (reader.get_node().get_type_name(), reader.get_index()) for reader in convert.output(0).get_target_inputs()
    }
    is_constant = weights.get_node().get_type_name() == "Constant"
    return is_constant and types == ("bf16", "f32") and readers == {("MatMul", 1)}


def _marked(openvino: Any, count: int) -> list[Any]:
    """Return so many nodes `Convert` that have the mark; their shapes are those of whatever they read next."""
    if not count:
        return []
    places = [{"weights": 3 * i, "convert": 3 * i + 1, "result": 3 * i + 2} for i in range(count)]
    layers = "".join(_MARKED.format(**place) for place in places)
    edges = "".join(_EDGES.format(**place) for place in places)
    graph = f'<net name="marked" version="11"><layers>{layers}</layers><edges>{edges}</edges></net>'
    read = openvino.Core().read_model(graph.encode(), bytes(2))
    return [node for node in read.get_ops() if node.get_type_name() == "Convert"]
