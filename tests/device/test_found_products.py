"""Products whose input grids are found as the model runs, as the converters of all engines read them."""

from __future__ import annotations

import numpy as np
import pytest
from engine_ops import FOUND_GRIDS, with_found_grids
from onnx import numpy_helper

from edgeopt.executors._conversion.found_grids import found_product
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model


def changed(part: str, value: float) -> Graph:
    """The graph of one product with one number of a constant replaced; its parts have names that end in theirs."""
    proto = with_found_grids(FOUND_GRIDS["rows"], "litert-cpu").proto
    (constant,) = [one for one in proto.graph.initializer if one.name.endswith(part)]
    array = numpy_helper.to_array(constant).copy()
    array.reshape(-1)[1] = value
    constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    return Graph.from_model(Model(proto, "changed"))


def product_of(graph: Graph) -> object:
    (node,) = graph.nodes("MatMulIntegerToFloat", domain="com.microsoft")
    return found_product(graph, node)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 1e-40])
def test_a_scale_that_is_no_step_is_refused_for_every_engine(scale: float) -> None:
    assert product_of(changed("_weight_scale", 0.5)) is not None
    assert product_of(changed("_weight_scale", scale)) is None


def test_weights_about_another_number_are_refused_for_every_engine() -> None:
    assert product_of(changed("_weight_zero_point", 1)) is None
