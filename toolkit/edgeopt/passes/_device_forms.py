"""Bring a model into what a device's compiler takes: the rewrites its target asks for, and real numbers in float32.

Each rewrite is checked against the model it came from; what a target does not ask for is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from edgeopt.errors import InvalidFileError, Note, NoteKind, NotFoundError, StepError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR as CPU
from edgeopt.executors.reference import EXECUTOR as REFERENCE
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.passes import Phase
from edgeopt.passes._apply import TOLERANCE, Expectation, apply_checked, fuse, pass_functions, simplify
from edgeopt.system.target import Target
from edgeopt.system.text import plural


def adapt(
    model: Model, target: Target, shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[Tensors] = ()
) -> Outcome:
    """Return the model in float32, with fixed shapes, in the target's opset, with all rewrites applied.

    Args:
        model: Any model that ONNX Runtime can run.
        target: Its `refused_dtypes`, `opset` and `rewrites` say what is needed.
        shapes: Whole input shapes by name, for the inputs that the model leaves free.
        inputs: Real inputs on which every result must equal the model's; none: random numbers.

    Raises:
        UnsupportedError: If a dimension is fixed by neither the shapes nor the model.
        StepError: If float32 changes the outputs.
    """
    first = simplify_for(model, target, shapes, inputs)
    return first.then(fuse_for(first.model, target, inputs))


def simplify_for(
    model: Model, target: Target, shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[Tensors] = ()
) -> Outcome:
    """Return the model in float32 where the target has no float64, with fixed shapes, simplified; see `adapt`."""
    done = make_float32(model, inputs) if "float64" in target.refused_dtypes else Outcome(model, {})
    return done.then(simplify(done.model, shapes, _as_read(done.model, inputs), opset=target.opset))


def fuse_for(model: Model, target: Target, inputs: Sequence[Tensors] = ()) -> Outcome:
    """Return the model fused, and rewritten as the target asks; see `adapt`."""
    cast = _as_read(model, inputs)
    done = fuse(model, cast)
    return done.then(rewrite_for(done.model, target, cast))


def _as_read(model: Model, inputs: Sequence[Tensors]) -> list[Tensors]:
    """Return the inputs in float32 where the model no longer reads float64."""
    wide = {one.name for one in model.inputs if one.dtype == "float64"}
    return [one if wide & one.keys() else _as_float32(one) for one in inputs]


def rewrite_for(
    model: Model, target: Target, inputs: Sequence[Tensors] = (), *, tolerance: float = TOLERANCE
) -> Outcome:
    """Apply the passes that the target asks for.

    Args:
        model: A model with fixed shapes.
        target: Its `rewrites` name passes of the phase `device`.
        inputs: Real inputs on which the result must equal the model's; none: random numbers.
        tolerance: Largest error over signal, root mean square.

    Raises:
        NotFoundError: If the target names a pass that does not exist.
    """
    known = pass_functions(Phase.DEVICE)
    for name in target.rewrites:
        if name not in known:
            raise NotFoundError("pass", name, known)
    asked = {name: known[name] for name in known if name in target.rewrites}
    if not asked:
        return Outcome(model, {})
    return apply_checked(model, asked, Expectation.of(model, list(inputs) or [probe(model)], tolerance))


def probe(model: Model) -> Tensors:
    """Return inputs of a fixed seed: numbers from 0 to 1, for whole numbers and truth values 0 or 1."""
    random = np.random.default_rng(0)
    made = {}
    for spec in model.inputs:
        shape = [size if isinstance(size, int) else 1 for size in spec.shape]
        drawn = random.random(shape) if "float" in spec.dtype else random.integers(0, 2, shape)
        made[spec.name] = np.asarray(drawn, spec.dtype)
    return made


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
    given = list(inputs) or [probe(model)]
    expected = Expectation([_as_float32(one) for one in given], _run_float64(model, given), tolerance)
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
        session: Session = CPU.open(model.data, SessionOptions())
    except InvalidFileError:
        session = REFERENCE.open(model.data, SessionOptions())
    try:
        return [session.run(one) for one in inputs]
    finally:
        session.close()


def _as_float32(inputs: Tensors) -> Tensors:
    return {name: one.astype(np.float32) if one.dtype == np.float64 else one for name, one in inputs.items()}


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
