"""Means, sums, extremes and norms along axes."""

from __future__ import annotations

from onnx import TensorProto

from edgeopt.executors.coreml.reading.reading import MilOp, MilReading, Read


def _reduced(name: str) -> Read:
    def read(reading: MilReading, op: MilOp) -> str:
        axes = op.whole("axes") if op.has("axes") else [*range(len(op.shape("x")))]
        keeps = int(bool(op.number("keep_dims"))) if op.has("keep_dims") else 0
        made: str = reading.add(name, [op.tensor("x"), reading.row(axes)], keepdims=keeps)
        return made

    return read


def _place(name: str) -> Read:
    def read(reading: MilReading, op: MilOp) -> str:
        keeps = int(bool(op.number("keep_dims"))) if op.has("keep_dims") else 0
        wide = reading.add(name, [op.tensor("x")], axis=int(op.number("axis")), keepdims=keeps)
        made: str = reading.add("Cast", [wide], to=TensorProto.INT32)
        return made

    return read


OPS = {
    "reduce_mean": _reduced("ReduceMean"),
    "reduce_sum": _reduced("ReduceSum"),
    "reduce_max": _reduced("ReduceMax"),
    "reduce_min": _reduced("ReduceMin"),
    "reduce_prod": _reduced("ReduceProd"),
    "reduce_sum_square": _reduced("ReduceSumSquare"),
    "reduce_l1_norm": _reduced("ReduceL1"),
    "reduce_l2_norm": _reduced("ReduceL2"),
    "reduce_log_sum_exp": _reduced("ReduceLogSumExp"),
    "reduce_argmax": _place("ArgMax"),
    "reduce_argmin": _place("ArgMin"),
}
