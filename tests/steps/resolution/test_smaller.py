"""A network at another input size computes what it would have been exported to compute there, or is refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_models import assert_same, indices, model, numbers, run

from edgeopt.errors import UnsupportedError
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.recipes.inputs.preprocess import Layout
from edgeopt.recipes.recipe import find_recipe
from edgeopt.steps.resolution.sizes import smaller_sizes, stride_of
from edgeopt.steps.resolution.smaller import matched_sizes, with_input_size

END = np.iinfo(np.int64).max


def detector(size: int) -> Model:
    """Focus slices, strided convolutions, a Resize to given sizes, heads flattened and joined, as YOLOX has."""
    fine, coarse = size // 4, size // 8
    return model(
        f"""agraph (float[1,3,{size},{size}] x) => (float[1,{fine**2 + coarse**2},6] y) {{
            even = Slice(x, zeros, ends, axes, twos)
            odd = Slice(x, ones, ends, axes, twos)
            both = Concat<axis=1>(even, odd)
            a = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(both, w1)
            b = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(a, w2)
            up = Resize<mode="nearest">(b, , , sizes)
            c = Add(a, up)
            f = Reshape(c, fine)
            g = Reshape(b, coarse)
            h = Concat<axis=2>(f, g)
            y = Transpose<perm=[0,2,1]>(h)
        }}""",
        zeros=indices(0, 0),
        ones=indices(1, 1),
        ends=indices(size, END),
        axes=indices(2, 3),
        twos=indices(2, 2),
        w1=numbers(6, 6, 3, 3, seed=1),
        w2=numbers(6, 6, 3, 3, seed=2),
        sizes=indices(1, 6, fine, fine),
        fine=indices(1, 6, fine**2),
        coarse=indices(1, 6, -1),
    )


def classifier(size: int) -> Model:
    """A mean over the whole picture written as a pooling window, squeeze-excite, and a matrix behind them."""
    return model(
        f"""agraph (float[1,3,{size},{size}] x) => (float[1,5] y) {{
            a = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x, w1)
            r = Relu(a)
            m = ReduceMean<axes=[2,3], keepdims=1>(r)
            e = Sigmoid(m)
            s = Mul(r, e)
            p = AveragePool<kernel_shape=[{size // 2},{size // 2}]>(s)
            f = Reshape(p, flat)
            y = Gemm(f, w2)
        }}""",
        w1=numbers(8, 3, 3, 3, seed=1),
        w2=numbers(8, 5, seed=2),
        flat=indices(1, 8),
    )


@pytest.mark.parametrize("made", [detector, classifier])
def test_a_smaller_model_is_the_one_that_would_have_been_exported(made):
    found, wanted = with_input_size(made(64), "", Layout.NCHW, (40, 40)), made(40)
    assert [one.shape for one in found.outputs] == [one.shape for one in wanted.outputs]
    assert_same(wanted, found)


def test_sides_may_differ():
    found = with_input_size(detector(64), "x", Layout.NCHW, (32, 48))
    assert run(found, {"x": numbers(1, 3, 32, 48)})["y"].shape == (1, 8 * 12 + 4 * 6, 6)


def net(nodes: str, out: str = "", **constants: np.ndarray) -> Model:
    graph = f"agraph (float[1,4,16,16] x) => (float{out or '[1,4,16,16]'} y) {{ {nodes} }}"
    return model(graph, **constants)


REFUSED = {
    "weights with a row for each place": (
        net("f = Flatten(x) y = Gemm(f, w)", "[1,5]", w=numbers(1024, 5)),
        "Gemm .* weights 1024x5 have a row for each place",
    ),
    "a product of a flat picture": (
        net("f = Reshape(x, s) y = MatMul(f, w)", "[1,5]", s=indices(1, -1), w=numbers(1024, 5)),
        "MatMul .* have a row for each place",
    ),
    "a grid": (net("y = Add(x, grid)", grid=numbers(16, 16)), "Add .* constant of shape 16x16"),
    "anchors joined to boxes": (
        net("f = Reshape(x, s) y = Concat<axis=1>(f, a)", "[1,6,256]", s=indices(1, 4, 256), a=numbers(1, 2, 256)),
        "Concat .* constant of shape 1x2x256",
    ),
    "a cut at a place of its own": (
        net("y = Slice(x, zero, eight, three)", "[1,4,16,8]", zero=indices(0), eight=indices(8), three=indices(3)),
        "Slice .* cuts from 0 to 8",
    ),
    "windows": (net("y = Reshape(x, s)", "[1,4,4,4,16]", s=indices(1, 4, 4, 4, 16)), "Reshape .* ambiguous"),
    "sizes that are no multiple": (
        net('y = Resize<mode="nearest">(x, , , s)', "[1,4,24,24]", s=indices(1, 4, 24, 24)),
        "Resize .* no whole multiple",
    ),
    "places by number": (net("y = Gather<axis=3>(x, i)", "[1,4,16,2]", i=indices(3, 15)), "Gather .* names places"),
    "parts of an axis": (
        net("y, z = Split<axis=2>(x, parts)", "[1,4,4,16]", parts=indices(4, 12)),
        "Split .* names places",
    ),
    "an op that nobody knows": (
        net("y = TopK<axis=1>(x, k)".replace("y =", "v, i =") + " y = Relu(v)", "[1,2,16,16]", k=indices(2)),
        "TopK .* nobody knows",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_belongs_to_one_size_is_refused_with_the_nodes_name(case):
    made, told = REFUSED[case]
    with pytest.raises(UnsupportedError, match=told):
        with_input_size(made, "", Layout.NCHW, (8, 8))


@pytest.mark.parametrize(
    ("old", "new", "target", "found"),
    [
        ((1, 85, 52, 52), (1, 85, 44, 40), (1, 85, 2704), (1, 85, 1760)),
        ((1, 12, 8, 8), (1, 12, 6, 6), (1, 3, 4, 8, 8), (1, 3, 4, 6, 6)),
        ((1, 8, 4, 4), (1, 8, 3, 3), (1, 8, 16, 1), (1, 8, 9, 1)),
        ((1, 512, 1, 1), (1, 512, 1, 1), (1, 512), (1, 512)),
        ((1, 16, 8, 8), (1, 16, 6, 6), (1, 16, 2, 4, 8), None),
        ((1, 8, 8, 4), (1, 6, 6, 4), (8, 8, 4), (6, 6, 4)),
        ((1, 8, 8, 8), (1, 8, 6, 6), (1, 4, 128), None),
    ],
)
def test_numbers_of_a_reshape_are_found_in_the_sizes_or_not_at_all(old, new, target, found):
    assert matched_sizes(old, new, target) == found


@pytest.mark.parametrize(
    ("size", "unit", "found"),
    [
        ((416, 416), 32, ((384, 384), (352, 352), (320, 320))),
        ((160, 160), 32, ((128, 128),)),
        ((480, 640), 32, ((448, 576), (416, 544), (384, 480))),
        ((32, 32), 32, ()),
        ((32, 32), 4, ((28, 28), (24, 24))),
    ],
)
def test_sizes_are_multiples_of_the_stride_below_the_own(size, unit, found):
    assert smaller_sizes(size, unit) == found


def test_the_stride_of_a_network_is_that_of_its_coarsest_cell():
    assert stride_of(Graph.from_model(detector(64)), find_recipe("imagenet")) == 8
    assert stride_of(Graph.from_model(detector(64)), find_recipe("yolox")) == 32
    assert stride_of(Graph.from_model(classifier(64)), find_recipe("imagenet")) == 2
