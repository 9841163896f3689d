"""Turn float64 into float32, for a device that has no float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from edgeopt.errors import InvalidFileError, Note, NoteKind, StepError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR as CPU
from edgeopt.executors.reference import EXECUTOR as REFERENCE
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps._checked import TOLERANCE, Expectation, in_float32, probe
from edgeopt.system.text import plural


def make_float32(model: Model, inputs: Sequence[Tensors] = (), *, tolerance: float = TOLERANCE) -> Outcome:
    """Turn every float64 into float32, inputs and outputs too; a model without any comes back as it is.

    Args:
        model: Any model.
        inputs: Real inputs on which the outputs must stay equal; none: random numbers.
        tolerance: Largest error over signal, root mean square.

    Raises:
        StepError: If the outputs differ: the model needs the digits.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    count = _narrow_graph(proto.graph)
    if count == 0:
        return Outcome(model, {})
    changed = Model(proto, model.name)
    given = list(inputs) or [probe(model.inputs)]
    expected = Expectation([in_float32(arrays) for arrays in given], _run_float64(model, given), tolerance)
    reason = expected.why_not(changed)
    if reason is not None:
        raise StepError(
            f"{model.name} cannot run in float32: {reason}",
            remedy="export the model in float32, or choose --target cpu",
        )
    detail = f"{plural(count, 'tensor')} in float64 became float32, inputs and outputs among them"
    return Outcome(changed, {"make_float32": count}, (Note(NoteKind.CHOICE, detail, "the device has no float64"),))


def _run_float64(model: Model, inputs: Sequence[Tensors]) -> list[Tensors]:
    """Run the model as it is; ONNX Runtime lacks many ops in float64, onnx's own evaluator does not."""
    try:
        session: Session = CPU.open(model.source, SessionOptions())
    except InvalidFileError:
        session = REFERENCE.open(model.source, SessionOptions())
    try:
        return [session.run(input_) for input_ in inputs]
    finally:
        session.close()


def _narrow_graph(graph: onnx.GraphProto) -> int:
    """Rewrite types, constants and casts in place; return how many."""
    count = 0
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.DOUBLE:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            count += 1
    for tensor in graph.initializer:
        count += _narrow_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.DOUBLE:
                attribute.i = TensorProto.FLOAT
                count += 1
            elif attribute.type == onnx.AttributeProto.TENSOR:
                count += _narrow_tensor(attribute.t)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                count += _narrow_graph(attribute.g)
    return count


def _narrow_tensor(tensor: TensorProto) -> int:
    if tensor.data_type != TensorProto.DOUBLE:
        return 0
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    return 1
