"""A model of LiteRT while it is written: tensors, operators, and the `.tflite` file that holds both.

Source: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/compiler/mlir/lite/schema/schema.fbs
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import UnsupportedError
from edgeopt.system.declared.optional import require

_PURPOSE = "writing a .tflite file"
_FILE_VERSION = 3
_IDENTIFIER = b"TFL3"
_LARGEST_FILE = (1 << 31) - (1 << 24)
"""Offsets of a file are signed 32-bit integers; the rest is left for tensors and operators."""
_ALIGNMENT = 16
"""Bytes to which the schema aligns a buffer (`force_align`); its Python code does not."""
_TYPES: Mapping[str, str] = {
    "float32": "FLOAT32",
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
_LARGEST_OLD_CODE = 127
"""Codes above it have a field of their own; the older field then holds this number."""
_OF_INTEGERS: Mapping[str, int] = {
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "TRANSPOSE_CONV": 3,
    "FULLY_CONNECTED": 5,
    "RESIZE_BILINEAR": 3,
    "RESIZE_NEAREST_NEIGHBOR": 3,
    "TRANSPOSE": 2,
    "RESHAPE": 1,
    "QUANTIZE": 1,
    "HARD_SWISH": 1,
}
"""First versions of operators that take int8, where that is not the second; see `op_version.cc` of TensorFlow Lite."""
_OF_FLOATS: Mapping[str, int] = {
    "TRANSPOSE_CONV": 3,
    "DEPTHWISE_CONV_2D": 2,
    "RESIZE_BILINEAR": 3,
    "RESIZE_NEAREST_NEIGHBOR": 3,
    "FULLY_CONNECTED": 5,
    "BROADCAST_TO": 2,
}
"""Versions of what is written here for floats (a bias, dilations, half pixels), where that is not the first."""
_OF_FOUND_GRIDS: Mapping[str, int] = {"FULLY_CONNECTED": 12}
"""First versions of operators that take floats and weights in int8, with a scale for each output."""
_TABLES: Mapping[str, str] = {
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "SUM": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_PROD": "ReducerOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "PADV2": "PadV2Options",
    "TOPK_V2": "TopKV2Options",
    "SELECT_V2": "SelectV2Options",
}
"""Tables of options that are not called as their operator."""
_WITHOUT_OPTIONS = frozenset(
    {"LOGISTIC", "RELU", "RELU6", "RELU_N1_TO_1", "TANH", "ELU", "FLOOR", "CEIL", "LOG", "SQRT", "RSQRT", "SIN"}
    | {"PRELU", "ROUND"}
)

_ENUMERATIONS: Mapping[str, str] = {
    "padding": "Padding",
    "fusedActivationFunction": "ActivationFunctionType",
    "mode": "MirrorPadMode",
    "inDataType": "TensorType",
    "outDataType": "TensorType",
    "outputType": "TensorType",
}
"""Option whose value may be a word -> the schema's enumeration that has this word."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The integers of a tensor: number = scale * (integer - zero)."""

    scale: tuple[float, ...]
    """One, or one for each place of `axis`."""
    zero: tuple[int, ...]
    axis: int = 0


@dataclass(frozen=True, slots=True)
class TfliteTensor:
    """A tensor as LiteRT stores it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As NumPy calls it."""
    grid: Grid | None = None
    data: NDArray[Any] | None = None
    """A constant's numbers."""


@dataclass(frozen=True, slots=True)
class TfliteOperator:
    """One operator and its tensors, by their places."""

    code: str
    """As the schema's `BuiltinOperator` calls it."""
    inputs: tuple[int, ...]
    """-1: left out."""
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of its table of options, as the schema's Python objects call them; words stand for enumerations."""


class TfliteNetwork:
    """Tensors, and operators in the order in which they run."""

    def __init__(self) -> None:
        self.tensors: list[TfliteTensor] = []
        self.operators: list[TfliteOperator] = []
        self._constants: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def tensor(self, name: str, shape: Sequence[int], dtype: str = "float32", grid: Grid | None = None) -> int:
        """Add a tensor that an operator makes, or an input; return its place."""
        self.tensors.append(TfliteTensor(name, tuple(map(int, shape)), dtype, grid))
        return len(self.tensors) - 1

    def constant(self, name: str, array: NDArray[Any], grid: Grid | None = None) -> int:
        """Add a constant; return its place, which equal small ones share."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.name, array.shape, array.tobytes()) if array.size <= _ALIGNMENT and grid is None else None
        if key is not None and key in self._constants:
            return self._constants[key]
        self.tensors.append(TfliteTensor(name, array.shape, array.dtype.name, grid, array))
        if key is not None:
            self._constants[key] = len(self.tensors) - 1
        return len(self.tensors) - 1

    def like(self, place: int, name: str, shape: Sequence[int]) -> int:
        """Add a tensor of the type and the grid of another; return its place."""
        other = self.tensors[place]
        return self.tensor(name, shape, other.dtype, other.grid)

    def add(self, code: str, inputs: Sequence[int], outputs: Sequence[int], **options: Any) -> None:
        """Add an operator."""
        self.operators.append(TfliteOperator(code, tuple(inputs), tuple(outputs), options))

    def rename(self, place: int, name: str) -> None:
        """Call a tensor otherwise."""
        self.tensors[place] = replace(self.tensors[place], name=name)

    def makers(self) -> set[int]:
        """Return the places of the tensors that operators make."""
        return {place for operator in self.operators for place in operator.outputs}


def without_unused(network: TfliteNetwork, inputs: Sequence[int], outputs: Sequence[int]) -> TfliteNetwork:
    """Return a network of what the outputs depend on, and of all inputs, with the places of tensors kept in order.

    Args:
        network: Its operators in the order in which they run.
        inputs: Places, which become the first.
        outputs: Places, whose tensors come behind the inputs.
    """
    wanted, kept = {*inputs, *outputs}, list[TfliteOperator]()
    for operator in reversed(network.operators):
        if wanted & set(operator.outputs):
            wanted |= set(operator.inputs) | set(operator.outputs)
            kept.append(operator)
    wanted.discard(-1)
    order = [*inputs, *outputs, *sorted(wanted - {*inputs, *outputs})]
    places = {place: i for i, place in enumerate(order)} | {-1: -1}
    made = TfliteNetwork()
    made.tensors = [network.tensors[place] for place in order]
    made.operators = [
        replace(
            operator,
            inputs=tuple(places[place] for place in operator.inputs),
            outputs=tuple(places[place] for place in operator.outputs),
        )
        for operator in reversed(kept)
    ]
    return made


def schema() -> Any:
    """Return the schema's Python code.

    Raises:
        MissingDependencyError: If LiteRT is not installed.
    """
    return require("ai_edge_litert.schema_py_generated", extra="litert", purpose=_PURPOSE)


def type_name(dtype: str) -> str:
    """Return the schema's name of a type that NumPy calls `dtype`."""
    return _TYPES[dtype]


def to_bytes(network: TfliteNetwork, inputs: Sequence[int], outputs: Sequence[int], description: str) -> bytes:
    """Return the `.tflite` file.

    Args:
        network: Tensors and operators.
        inputs: Places of the model's inputs; their names become those of the signature `serving_default`.
        outputs: Places of the model's outputs.
        description: Who wrote the file.

    Raises:
        MissingDependencyError: If LiteRT is not installed.
        UnsupportedError: If the file would be above 2 GB.
    """
    import flatbuffers  # comes with LiteRT

    stored = sum(tensor.data.nbytes for tensor in network.tensors if tensor.data is not None)
    if stored > _LARGEST_FILE:
        raise UnsupportedError(
            "a .tflite file holds at most 2 GB", remedy="store the weights in 8 bits first, or choose another engine"
        )

    words = schema()
    buffers: list[Any] = [words.BufferT()]  # the first is empty: the buffer of what is no constant
    tensors = [_tensor(words, tensor, buffers) for tensor in network.tensors]
    codes: list[tuple[str, int]] = []
    operators = [_operator(words, network, operator, codes) for operator in network.operators]
    graph = words.SubGraphT(tensors, [*inputs], [*outputs], operators, "main")
    signature = words.SignatureDefT(
        [words.TensorMapT(network.tensors[place].name, place) for place in inputs],
        [words.TensorMapT(network.tensors[place].name, place) for place in outputs],
        "serving_default",
    )
    model = words.ModelT(_FILE_VERSION, [_code(words, *code) for code in codes], [graph], description, buffers)
    model.signatureDefs = [signature]
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def _tensor(words: Any, tensor: TfliteTensor, buffers: list[Any]) -> Any:
    made = words.TensorT([*tensor.shape], getattr(words.TensorType, _TYPES[tensor.dtype]), 0, tensor.name)
    made.hasRank = True
    if tensor.data is not None:
        made.buffer = len(buffers)
        buffers.append(_aligned(words, np.frombuffer(tensor.data.tobytes(), np.uint8)))
    if tensor.grid is not None:
        made.quantization = words.QuantizationParametersT(
            scale=np.array(tensor.grid.scale, np.float32),
            zeroPoint=np.array(tensor.grid.zero, np.int64),
            quantizedDimension=tensor.grid.axis,
        )
    return made


def _aligned(words: Any, data: NDArray[np.uint8]) -> Any:
    """Return a buffer that packs itself at a multiple of 16 bytes."""
    buffer = words.BufferT(data)

    def pack(builder: Any) -> Any:
        builder.StartVector(1, len(data), _ALIGNMENT)
        builder.head = builder.Head() - len(data)
        builder.Bytes[builder.Head() : builder.Head() + len(data)] = data.tobytes()
        vector = builder.EndVector()
        words.BufferStart(builder)
        words.BufferAddData(builder, vector)
        return words.BufferEnd(builder)

    buffer.Pack = pack
    return buffer


def _operator(words: Any, network: TfliteNetwork, operator: TfliteOperator, codes: list[tuple[str, int]]) -> Any:
    code = (operator.code, _version(network, operator))
    if code not in codes:
        codes.append(code)
    made = words.OperatorT(codes.index(code), [*operator.inputs], [*operator.outputs])
    if operator.code not in _WITHOUT_OPTIONS:
        table = _TABLES.get(operator.code) or "".join(map(str.title, operator.code.split("_"))) + "Options"
        made.builtinOptionsType = getattr(words.BuiltinOptions, table)
        options = {key: _value(words, key, value) for key, value in operator.options.items()}
        made.builtinOptions = getattr(words, f"{table}T")(**options)
    return made


def _value(words: Any, key: str, value: Any) -> Any:
    return getattr(getattr(words, _ENUMERATIONS[key]), value) if isinstance(value, str) else value


def _version(network: TfliteNetwork, operator: TfliteOperator) -> int:
    types = {network.tensors[place].dtype for place in operator.inputs if place >= 0}
    if network.tensors[operator.inputs[0]].dtype == "float32" and "int8" in types:
        return _OF_FOUND_GRIDS[operator.code]
    if "int8" in types:
        return _OF_INTEGERS.get(operator.code, 2)
    return _OF_FLOATS.get(operator.code, 1)


def _code(words: Any, name: str, version: int) -> Any:
    number = getattr(words.BuiltinOperator, name)
    return words.OperatorCodeT(min(number, _LARGEST_OLD_CODE), None, version, number)
