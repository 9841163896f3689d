"""An op that cannot be followed pins its channels, says why, and pins nothing else."""

import numpy as np
import pytest
from channel_nets import alike, ints, net, numbers, weights, without_reading

from edgeopt.graph.groups import keep_channels, trace

ANY = "float[A,B,C,D] y"
BATCH = "float[A,B,C] y"
HEAD = {"w": numbers(2, 6, 1, 1)}
_BRANCH = """then_branch = one () => (float[1,6,8,8] t) { t = Relu(a) },
    else_branch = two () => (float[1,6,8,8] e) { e = Neg(a) }"""
_TOKENS = "q = Squeeze(g, last) t = Transpose <perm=[0,2,1]> (q)"
_GATES = {"i": numbers(1, 12, 6), "r": numbers(1, 12, 3)}

CASES = {
    "output": ("y = Relu(a)", ANY, {}, "an output of the model keeps its shape"),
    "DepthToSpace": (
        "p = DepthToSpace <blocksize=2> (a) y = Conv(p, w)",
        ANY,
        {"w": numbers(2, 1, 1, 1)},
        "not followed",
    ),
    "SpaceToDepth": (
        "p = SpaceToDepth <blocksize=2> (a) y = Conv(p, w)",
        ANY,
        {"w": numbers(2, 24, 1, 1)},
        "not followed",
    ),
    "Reshape: channel shuffle": (
        "r = Reshape(a, parts) t = Transpose <perm=[0,2,1,3,4]> (r) s = Reshape(t, back) y = Conv(s, w)",
        ANY,
        {"parts": ints(1, 2, 3, 8, 8), "back": ints(1, 6, 8, 8), "w": numbers(2, 6, 1, 1)},
        "no attention heads",
    ),
    "Reshape: pixel shuffle": (
        "r = Reshape(a, parts) t = Transpose <perm=[0,1,3,2,4]> (r) s = Reshape(t, back) y = Conv(s, w)",
        ANY,
        {"parts": ints(1, 3, 2, 8, 8), "back": ints(1, 3, 16, 8), "w": numbers(2, 3, 1, 1)},
        "no attention heads",
    ),
    "Reshape: group normalisation": (
        "r = Reshape(a, parts) n = InstanceNormalization(r, s, b) t = Reshape(n, back) y = Conv(t, w)",
        ANY,
        {"parts": ints(1, 3, -1), "back": ints(1, 6, 8, 8), "s": numbers(3), "b": numbers(3), "w": numbers(2, 6, 1, 1)},
        "no attention heads",
    ),
    "GroupNormalization": (
        "n = GroupNormalization <num_groups=3> (a, s, b) y = Conv(n, w)",
        ANY,
        {"s": numbers(6), "b": numbers(6), "w": numbers(2, 6, 1, 1)},
        "normalises across the channels",
    ),
    "LayerNormalization": (
        "t = Transpose <perm=[0,2,3,1]> (a) n = LayerNormalization(t, s) y = MatMul(n, w)",
        ANY,
        {"s": numbers(6), "w": numbers(6, 2)},
        "normalises across the channels",
    ),
    "MeanVarianceNormalization": (
        "n = MeanVarianceNormalization <axes=[1,2,3]> (a) y = Conv(n, w)",
        ANY,
        HEAD,
        "normalises across the channels",
    ),
    "LRN": ("n = LRN <size=3> (a) y = Conv(n, w)", ANY, HEAD, "normalises across the channels"),
    "Softmax": ("n = Softmax <axis=1> (a) y = Conv(n, w)", ANY, HEAD, "normalises across the channels"),
    "LpNormalization": (
        "n = LpNormalization <axis=1> (a) y = Conv(n, w)",
        ANY,
        HEAD,
        "normalises across the channels",
    ),
    "Gather": (
        "n = Gather <axis=1> (a, i) y = Conv(n, w)",
        ANY,
        {"i": ints(3, 1), "w": numbers(2, 2, 1, 1)},
        "Gather picks",
    ),
    "GatherND": ("y = GatherND(a, i)", "float[A] y", {"i": ints(0, 1, 2, 3).reshape(1, 4)}, "not followed"),
    "ScatterND": (
        "y = ScatterND(a, i, u)",
        ANY,
        {"i": ints(0, 1, 2, 3).reshape(1, 4), "u": numbers(1)},
        "not followed",
    ),
    "Einsum": ('y = Einsum <equation="nchw,oc->nohw"> (a, w)', ANY, {"w": numbers(2, 6)}, "not followed"),
    "LSTM": (f"{_TOKENS} y, h, c = LSTM <hidden_size=3> (t, i, r)", ANY, _GATES, "not followed"),
    "GRU": (
        f"{_TOKENS} y, h = GRU <hidden_size=4> (t, i, r)",
        ANY,
        {"i": numbers(1, 12, 6), "r": numbers(1, 12, 4)},
        "not followed",
    ),
    "RNN": (
        f"{_TOKENS} y, h = RNN <hidden_size=4> (t, i, r)",
        ANY,
        {"i": numbers(1, 4, 6), "r": numbers(1, 4, 4)},
        "not followed",
    ),
    "If": (f"y = If (c) <{_BRANCH}>", ANY, {"c": np.array(True)}, "not followed"),
    "FusedConv": (
        'n = com.microsoft.FusedConv <activation="Relu"> (a, w) y = Conv(n, v)',
        ANY,
        {"w": numbers(6, 6, 1, 1), "v": numbers(2, 6, 1, 1)},
        "not followed",
    ),
    "Shape": (
        "s = Shape(a) n = ConstantOfShape(s) y = Add(n, one)",
        ANY,
        {"one": np.array(1, np.float32)},
        "not followed",
    ),
    "Reshape: computed": (
        "s = Shape <end=1> (x) k = Concat <axis=0> (s, rest) r = Reshape(a, k) y = MatMul(r, w)",
        BATCH,
        {"rest": ints(-1, 64), "w": numbers(64, 2)},
        "a shape is computed while the model runs",
    ),
    "MatMul": (
        "r = Reshape(a, flat) t = Transpose <perm=[0,2,1]> (r) y = MatMul(t, r)",
        BATCH,
        {"flat": ints(1, 6, 64)},
        "summed over in a product of two activations",
    ),
    "Gemm": (
        "r = Reshape(g, flat) y = Gemm <transA=1> (r, w)",
        "float[A,B] y",
        {"flat": ints(1, 6), "w": numbers(1, 2)},
        "reads its input transposed",
    ),
    "Conv": (
        "k = Transpose <perm=[1,0,2,3]> (g) q = Concat <axis=1> (k, k, k) y = Conv(x, q)",
        ANY,
        {},
        "weights are computed while the model runs",
    ),
    "Conv: group": (
        "k = Concat <axis=1> (x, a, x) n = Conv <group=2> (k, w) y = Conv(n, v)",
        ANY,
        {"w": numbers(4, 6, 1, 1), "v": numbers(2, 4, 1, 1)},
        "a group of a convolution reads channels that stay",
    ),
    "MaxPool": (
        "n, y = MaxPool <kernel_shape=[2,2]> (a)",
        "int64[A,B,C,D] y",
        {},
        "places of maxima count the channels",
    ),
    "ArgMax": ("y = ArgMax <axis=1> (a)", "int64[A,B,C,D] y", {}, "reduces over the channels"),
    "ReduceMean": ("y = ReduceMean <axes=[1]> (a)", ANY, {}, "reduces over the channels"),
    "ReduceSum": ("y = ReduceSum <keepdims=0> (a)", "float y", {}, "reduces over the channels"),
    "TopK": ("y, i = TopK <axis=1> (a, k)", ANY, {"k": ints(2)}, "not followed"),
    "CumSum": ("y = CumSum(a, one)", ANY, {"one": np.array(1)}, "not followed"),
    "Slice": (
        "n = Slice(a, zero, end, one, two) y = Conv(n, w)",
        ANY,
        {"zero": ints(0), "end": ints(6), "one": ints(1), "two": ints(2), "w": numbers(2, 3, 1, 1)},
        "takes every n-th channel",
    ),
    "Slice: computed": (
        "s = Shape <start=0, end=1> (x) n = Slice(a, s, end, one) y = Add(n, n)",
        ANY,
        {"end": ints(6), "one": ints(1)},
        "a stretch of channels is computed while the model runs",
    ),
    "Resize": (
        'n = Resize <mode="nearest"> (a, e, s) y = Conv(n, w)',
        ANY,
        {"e": numbers(0), "s": np.array([1, 2, 1, 1], np.float32), "w": numbers(2, 12, 1, 1)},
        "resizes along the channels",
    ),
    "Resize: by so little that the size stays": (
        'n = Resize <mode="linear"> (a, e, s) y = Conv(n, w)',
        ANY,
        {"e": numbers(0), "s": np.array([1, 1.05, 1, 1], np.float32), **HEAD},
        "resizes along the channels",
    ),
    "Resize: all axes alike": (
        'n = Resize <mode="nearest", keep_aspect_ratio_policy="not_smaller"> (a, , , s) y = Conv(n, w)',
        ANY,
        {"s": ints(1, 6, 4, 4), **HEAD},
        "the scale along the channels hangs on other sizes",
    ),
    "LayerNormalization: a computed scale": (
        "r = Reshape(g, flat) k = Concat <axis=0> (r, two) n = LayerNormalization(x, k) y = Add(n, x)",
        ANY,
        {"flat": ints(6), "two": numbers(2)},
        "channels are a parameter of it",
    ),
    "BatchNormalization: without its means": (
        "n = BatchNormalization <training_mode=1> (a, s, b, s, v) y = Conv(n, w)",
        ANY,
        {"s": numbers(6), "b": numbers(6), "v": numbers(6) ** 2, **HEAD},
        "still training",
    ),
    "LayerNormalization: its means": (
        "r = Reshape(a, flat) n, m = LayerNormalization(r, s) y = MatMul(n, w) z = Relu(m)",
        f"{BATCH}, float[A,B,C] z",
        {"flat": ints(1, 6, 64), "s": numbers(64), "w": numbers(64, 2)},
        "means are read too",
    ),
    "Pad": (
        'n = Pad <mode="reflect"> (a, p) y = Conv(n, w)',
        ANY,
        {"p": ints(0, 1, 0, 0, 0, 1, 0, 0), "w": numbers(2, 8, 1, 1)},
        "pads channels with values of other channels",
    ),
    "Tile": (
        "n = Tile(a, r) y = Conv(n, w)",
        ANY,
        {"r": ints(1, 2, 1, 1), "w": numbers(2, 12, 1, 1)},
        "repeats the channels",
    ),
    "Mul": ("k = Concat <axis=1> (x, x) n = Mul(k, a) y = Conv(n, w)", ANY, HEAD, "meet a tensor whose channels stay"),
    "BatchNormalization": (
        "n, m, v = BatchNormalization <training_mode=1> (a, s, b, mean, var) y = Conv(n, w) z = Relu(m)",
        f"{ANY}, float[A] z",
        {"s": numbers(6), "b": numbers(6), "mean": numbers(6), "var": numbers(6) ** 2, "w": numbers(2, 6, 1, 1)},
        "still training",
    ),
    "QuantizeLinear": ("y = QuantizeLinear(a, s)", "uint8[A,B,C,D] y", {"s": np.array(1, np.float32)}, "not followed"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_followed_stays(case):
    body, outputs, constants, reason = CASES[case]
    opset = {"GroupNormalization": 21, "Resize: all axes alike": 18}.get(case, 17)
    dense = net(
        f"f = Conv(x, w0) a = Conv(f, w1) g = GlobalAveragePool(a) {body}",
        outputs,
        opset=opset,
        w0=weights(0, 5, 3, 1, 1),
        w1=weights(1, 6, 5, 1, 1),
        last=ints(3),
        **constants,
    )
    groups = trace(dense)
    assert groups["f"].pinned == ""
    assert reason in groups["a"].pinned
    assert (case.partition(":")[0], groups["a"].pinned) in {(one.op, one.reason) for one in groups.pins}
    keep_channels(dense, groups, {"f": np.array([1, 3])})


def test_what_a_node_makes_stays_too_where_it_cannot_be_followed():
    """Its weights would lose columns, and its output none."""
    dense = net(
        "u = com.microsoft.Unknown(x) f = Flatten(x) n = Gemm(f, w, u) y = MatMul(n, v)",
        "float[1,2] y",
        w=numbers(192, 6),
        v=numbers(6, 2),
    )
    assert trace(dense)["n"].pinned == "the shape of a tensor is not known"


def test_of_channels_some_of_which_stay_the_others_can_go():
    dense = net(
        "a = Conv(x, w0) b, y = Split <axis=1> (a, s) z = Conv(b, w1)",
        "float[1,4,8,8] y, float[1,2,8,8] z",
        s=ints(5, 4),
        w0=weights(0, 9, 3, 1, 1),
        w1=weights(1, 2, 5, 1, 1),
    )
    groups = trace(dense)
    assert groups["a"].channels == 5
    assert groups["a"].producers[0].channels.tolist() == [0, 1, 2, 3, 4, -1, -1, -1, -1]
    keep = {"a": np.array([1, 4])}
    alike(without_reading(dense, groups, keep), keep_channels(dense, groups, keep))
