"""onnx's own reference evaluator: slow, standard ops only, the oracle for tests and drift."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import onnx
from onnx.reference import ReferenceEvaluator

from edgeopt.errors import UnsupportedError
from edgeopt.executors import Executor, Placement, SessionOptions, Source, Staged, in_one_piece
from edgeopt.graph.files.outside_weights import read_whole
from edgeopt.graph.tensors import Tensors, TensorSpec


class ReferenceSession(Staged):
    """One `ReferenceEvaluator` and the words of `Session`."""

    simulated: ClassVar[bool] = False

    def __init__(self, evaluator: Any, proto: onnx.ModelProto) -> None:
        self._evaluator, self._proto = evaluator, proto
        constants = {constant.name for constant in proto.graph.initializer}
        self.inputs = tuple(_spec(value_info) for value_info in proto.graph.input if value_info.name not in constants)
        self.outputs = tuple(_spec(value_info) for value_info in proto.graph.output)

    def upload(self, inputs: Tensors) -> Any:
        """Return the inputs."""
        return dict(inputs)

    def execute(self, uploaded: Any) -> Any:
        """Run once."""
        return self._evaluator.run(None, uploaded)

    def download(self, results: Any) -> Tensors:
        """Name the results."""
        return {spec.name: value for spec, value in zip(self.outputs, results, strict=True)}

    def placement(self) -> tuple[Placement, ...]:
        """Return every node: the evaluator runs all of them."""
        return tuple(Placement(node.name, node.op_type, "reference") for node in self._proto.graph.node)

    def close(self) -> None:
        """Free the evaluator."""
        self._evaluator = None


class ReferenceExecutor(Executor):
    """The executor `reference`."""

    def why_unavailable(self) -> str | None:
        """Return None: onnx is a core dependency."""
        return None

    def open(self, source: Source, options: SessionOptions) -> ReferenceSession:
        """Load a model; providers and threads mean nothing here.

        Raises:
            InvalidFileError: If a file is no ONNX model, or its external data is not there.
            UnsupportedError: If an op is not part of ONNX.
        """
        source = in_one_piece(source, "the reference evaluator")
        proto = read_whole(source) if isinstance(source, Path) else onnx.load_from_string(source)
        try:
            return ReferenceSession(ReferenceEvaluator(proto), proto)
        except NotImplementedError as error:
            raise UnsupportedError(
                f"the reference evaluator lacks an op: {error}", remedy="use executor onnxruntime"
            ) from error


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    sizes = tuple(dim.dim_value or dim.dim_param or None for dim in tensor.shape.dim)
    return TensorSpec(value.name, dtype, sizes, is_unranked=not tensor.HasField("shape"))


EXECUTOR = ReferenceExecutor()
