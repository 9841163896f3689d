"""Integers of 8 bits: scale * (integer - zero)."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeopt.executors.coreml.reading.reading import MilOp, MilReading, as_array, type_of


def _grid(reading: MilReading, op: MilOp, dtype: Any) -> tuple[list[str], dict[str, int]]:
    scale = as_array(op.value("scale"))
    zero = op.value("zero_point").astype(dtype) if op.has("zero_point") else np.zeros(scale.shape, dtype)
    options = {"axis": int(op.number("axis"))} if scale.ndim else {}
    return [reading.const(scale), reading.const(zero)], options


def _quantize(reading: MilReading, op: MilOp) -> str:
    tables, options = _grid(reading, op, np.dtype(str(op.number("output_dtype"))))
    made: str = reading.add("QuantizeLinear", [op.tensor("input"), *tables], **options)
    return made


def _dequantize(reading: MilReading, op: MilOp) -> str:
    tables, options = _grid(reading, op, np.dtype(type_of(op.var("input"))))
    made: str = reading.add("DequantizeLinear", [op.tensor("input"), *tables], **options)
    return made


def _stored(reading: MilReading, op: MilOp) -> str:
    """Read weights that are integers in the file and floats before the model runs."""
    integers = op.value("quantized_data").astype(np.float32)
    wide = [1] * integers.ndim
    wide[int(op.number("axis"))] = -1
    scale, zero = (op.value(key).astype(np.float32) for key in ("scale", "zero_point"))
    numbers = (integers - (zero.reshape(wide) if zero.ndim else zero)) * (scale.reshape(wide) if scale.ndim else scale)
    return reading.const(as_array(numbers))


OPS = {"quantize": _quantize, "dequantize": _dequantize, "constexpr_affine_dequantize": _stored}
