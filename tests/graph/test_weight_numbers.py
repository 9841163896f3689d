"""Weights that are no numbers, or whose data are not those of their shape, are told in one line."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from edgeopt.errors import InvalidFileError
from edgeopt.graph.files.validity import require_numbers


def product_with(weight: np.ndarray, dims: tuple[int, ...]) -> ModelProto:
    """Return a model of one MatMul whose weight says another shape than it has."""
    tensor = numpy_helper.from_array(weight, "w")
    tensor.dims[:] = dims
    return helper.make_model(helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [], [], [tensor]))


def test_weights_that_are_numbers_pass():
    require_numbers(product_with(np.ones((4, 4), np.float32), (4, 4)), "model")


@pytest.mark.parametrize(
    ("weight", "dims", "problem"),
    [
        (np.full((2, 2), np.nan, np.float32), (2, 2), "weight 'w' is NaN in 4 of 4 numbers"),
        (np.ones((8, 8), np.float32), (1,), "weight 'w' holds other data than its shape [1] says"),
    ],
)
def test_a_weight_that_is_none_is_one_line(weight, dims, problem):
    with pytest.raises(InvalidFileError) as raised:
        require_numbers(product_with(weight, dims), "model")
    assert problem in raised.value.problem
    assert "\n" not in raised.value.problem
