"""INT8 and float16 models as ONNX Runtime's own tools make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import version_converter
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.transformers.float16 import convert_float_to_float16

Sample = Mapping[str, NDArray[Any]]


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: Sequence[Sample]) -> None:
        self._left = list(samples)

    def get_next(self) -> Sample | None:
        """Return the next sample; None at the end."""
        return self._left.pop() if self._left else None


def make_quantized(source: Path, made: Path, samples: Sequence[Sample]) -> None:
    """Write a model in the form that the last word of `made`'s name asks for, at opset 13.

    Args:
        source: The float32 model.
        made: `*_qdq.onnx`, `*_qoperator.onnx`, `*_dynamic.onnx` or `*_fp16.onnx`.
        samples: For calibration.
    """
    kind = made.stem.rpartition("_")[2]
    model = version_converter.convert_version(onnx.load(source), 13)
    model.ir_version = 8  # older ones want every initializer among the inputs
    made.parent.mkdir(parents=True, exist_ok=True)
    upgraded = made.with_name(f"{source.stem}_13.onnx")
    onnx.save(model, upgraded)
    if kind == "fp16":
        onnx.save(convert_float_to_float16(model, keep_io_types=True), made)
    elif kind == "dynamic":
        quantize_dynamic(upgraded, made)
    else:
        form = QuantFormat.QDQ if kind == "qdq" else QuantFormat.QOperator
        as_array = [{name: np.asarray(value) for name, value in one.items()} for one in samples]
        quantize_static(
            upgraded, made, _Reader(as_array), quant_format=form, per_channel=True, activation_type=QuantType.QUInt8
        )
    upgraded.unlink()
