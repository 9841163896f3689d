"""Ops that move numbers: other shapes and orders, parts, joins, padding."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from edgeopt.executors.coreml.reading.reading import MilOp, MilReading


def _reshape(reading: MilReading, op: MilOp) -> str:
    made: str = reading.add("Reshape", [op.tensor("x"), reading.row(op.made_shape)])
    return made


def _transpose(reading: MilReading, op: MilOp) -> str:
    rank = len(op.shape("x"))
    made: str = reading.add("Transpose", [op.tensor("x")], perm=[axis % rank for axis in op.whole("perm")])
    return made


def _concat(reading: MilReading, op: MilOp) -> str:
    """Read a join; one that interleaves takes the first place of each part, then the second of each."""
    parts, axis = [reading.tensor(var) for var in op.var("values")], int(op.number("axis"))
    if not (op.has("interleave") and op.number("interleave")):
        joined: str = reading.add("Concat", parts, axis=axis)
        return joined
    behind = axis % len(op.made_shape) + 1
    parts = [reading.add("Unsqueeze", [part, reading.row([behind])]) for part in parts]
    made: str = reading.add("Reshape", [reading.add("Concat", parts, axis=behind), reading.row(op.made_shape)])
    return made


def _split(reading: MilReading, op: MilOp) -> list[str]:
    axis = int(op.number("axis"))
    sizes = [int(var.shape[axis]) for var in op.op.outputs]
    made = reading.add("Split", [op.tensor("x"), reading.row(sizes)], outputs=len(sizes), axis=axis)
    return [made] if isinstance(made, str) else made


def _slice(reading: MilReading, op: MilOp) -> str:
    shape = op.shape("x")
    begin, end = op.whole("begin"), op.whole("end")
    stride = op.whole("stride") if op.has("stride") else [1] * len(shape)
    masks = {key: op.value(key) if op.has(key) else [False] * len(shape) for key in _MASKS}
    if any(number < 0 for number in stride):
        raise op.refuse("backwards")
    begin = [0 if masks["begin_mask"][i] else number for i, number in enumerate(begin)]
    end = [shape[i] if masks["end_mask"][i] else number for i, number in enumerate(end)]
    squeezed = [i for i, is_number in enumerate(masks["squeeze_mask"]) if is_number]
    for i in squeezed:
        begin[i] %= shape[i]
        end[i] = begin[i] + 1
    axes = [*range(len(shape))]
    made: str = reading.add("Slice", [op.tensor("x"), *map(reading.row, (begin, end, axes, stride))])
    if squeezed:
        made = reading.add("Squeeze", [made, reading.row(squeezed)])
    return made


_MASKS = ("begin_mask", "end_mask", "squeeze_mask")


def _slice_by_size(reading: MilReading, op: MilOp) -> str:
    begin = op.whole("begin")
    end = [start + size for start, size in zip(begin, op.made_shape, strict=True)]
    axes = [*range(len(begin))]
    made: str = reading.add("Slice", [op.tensor("x"), *map(reading.row, (begin, end, axes))])
    return made


def _crop(reading: MilReading, op: MilOp) -> str:
    begin = [op.whole(key)[0] for key in ("crop_height", "crop_width")]
    end = [start + size for start, size in zip(begin, op.made_shape[-2:], strict=True)]
    made: str = reading.add("Slice", [op.tensor("x"), *map(reading.row, (begin, end, (-2, -1)))])
    return made


def _reverse(reading: MilReading, op: MilOp) -> str:
    axes = op.whole("axes")
    rows = ([-1] * len(axes), [-(1 << 31)] * len(axes), axes, [-1] * len(axes))
    made: str = reading.add("Slice", [op.tensor("x"), *map(reading.row, rows)])
    return made


def _wide(reading: MilReading, op: MilOp, key: str) -> str:
    name: str = reading.add("Cast", [op.tensor(key)], to=TensorProto.INT64)
    return name


def _gather(name: str) -> Any:
    def read(reading: MilReading, op: MilOp) -> str:
        if op.has("batch_dims") and op.number("batch_dims"):
            raise op.refuse("of batches")
        places = _wide(reading, op, "indices")
        made: str = reading.add(name, [op.tensor("x"), places], axis=int(op.number("axis")))
        return made

    return read


def _gather_nd(reading: MilReading, op: MilOp) -> str:
    batches = int(op.number("batch_dims")) if op.has("batch_dims") else 0
    made: str = reading.add("GatherND", [op.tensor("x"), _wide(reading, op, "indices")], batch_dims=batches)
    return made


def _scatter_nd(reading: MilReading, op: MilOp) -> str:
    mode = str(op.number("mode"))
    made: str = reading.add(
        "ScatterND",
        [op.tensor("data"), _wide(reading, op, "indices"), op.tensor("updates")],
        reduction="none" if mode == "update" else mode,
    )
    return made


def _pad(reading: MilReading, op: MilOp) -> str:
    flat, rank = op.whole("pad"), len(op.shape("x"))
    mode = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}[str(op.number("mode"))]
    none = [0] * (rank - len(flat) // 2)
    pads = [*none, *flat[0::2], *none, *flat[1::2]]
    value = reading.const(op.number("constant_val") if op.has("constant_val") else 0.0, np.float32)
    made: str = reading.add("Pad", [op.tensor("x"), reading.row(pads), value], mode=mode)
    return made


def _depth_to_space(mode: str, key: str) -> Any:
    def read(reading: MilReading, op: MilOp) -> str:
        made: str = reading.add("DepthToSpace", [op.tensor("x")], blocksize=int(op.number(key)), mode=mode)
        return made

    return read


def _space_to_depth(reading: MilReading, op: MilOp) -> str:
    made: str = reading.add("SpaceToDepth", [op.tensor("x")], blocksize=int(op.number("block_size")))
    return made


def _tile(reading: MilReading, op: MilOp) -> str:
    made: str = reading.add("Tile", [op.tensor("x"), reading.row(op.whole("reps"))])
    return made


def _top(reading: MilReading, op: MilOp) -> list[str]:
    axis, count = int(op.number("axis")), int(op.number("k"))
    least = int(not (op.has("ascending") and op.number("ascending")))
    inputs = [op.tensor("x"), reading.row([count])]
    values, places = reading.add("TopK", inputs, outputs=2, axis=axis, largest=least)
    return [values, reading.add("Cast", [places], to=TensorProto.INT32)]


OPS = {
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "concat": _concat,
    "split": _split,
    "slice_by_index": _slice,
    "slice_by_size": _slice_by_size,
    "crop": _crop,
    "reverse": _reverse,
    "gather": _gather("Gather"),
    "gather_along_axis": _gather("GatherElements"),
    "gather_nd": _gather_nd,
    "scatter_nd": _scatter_nd,
    "pad": _pad,
    "depth_to_space": _depth_to_space("DCR", "block_size"),
    "pixel_shuffle": _depth_to_space("CRD", "upscale_factor"),
    "space_to_depth": _space_to_depth,
    "tile": _tile,
    "topk": _top,
}
