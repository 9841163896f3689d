"""Join the ops of an attention to one, where ONNX Runtime's transformer optimizer recognises them.

MultiHeadAttention keeps the four matrix products apart, so that they can still become integers, and does not store
the weights of each token for all others: 1.00 to 1.08 times as fast as the separate ops on a CPU, the longer the
sequence the more. The optimizer's other fusions are left out: SkipLayerNormalization is slower there than
the Add and the LayerNormalization that it stands for (0.85 to 0.93 of the whole model's speed), and BiasGelu no faster.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.executors.onnxruntime.providers import CPU
from edgeopt.executors.onnxruntime.transformer_tools import transformer_tools
from edgeopt.graph.files.validity import require_valid
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.steps._checked import TOLERANCE, Expectation
from edgeopt.system.declared.target import Target

_FUSED = "MultiHeadAttention"
_MODEL_TYPE = "bert"
"""Its class serves BERT, ViT and Swin as PyTorch exports them; it reads the number of heads from the graph."""


def joins_attention(target: Target) -> bool:
    """Whether a target's engine has the joined op: other providers of ONNX Runtime may leave it to the CPU."""
    return target.executor == "onnxruntime" and target.providers[0] == CPU


def fuse_attention(model: Model, inputs: Sequence[Tensors], *, tolerance: float = TOLERANCE) -> Outcome:
    """Return the model with MultiHeadAttention nodes; the model itself where nothing is recognised.

    Args:
        model: A float model with fixed shapes.
        inputs: Real inputs on which the result must equal the model's.
        tolerance: Largest error over signal, root mean square.

    Raises:
        InvalidFileError: If ONNX Runtime refuses the model.
    """
    if not _may_attend(model):
        return Outcome(model, {})
    try:
        fused = _fused(model)
        require_valid(fused.proto, fused.name)
    except Exception as error:  # a pattern matcher of hundreds of forms: whatever it stumbles on, the model stays
        return _left_out(
            model, error.problem if isinstance(error, EdgeoptError) else f"{type(error).__name__}: {error}"
        )
    count = fused.op_counts.get(_FUSED, 0)
    if not count:
        return Outcome(model, {})
    if reason := Expectation.of(model, inputs, tolerance).why_not(fused):
        return _left_out(model, reason)
    return Outcome(fused, {"attention": count})


def _may_attend(model: Model) -> bool:
    """Whether some Softmax is followed by a product: without it the optimizer need not be loaded."""
    weights = {node.output[0] for node in model.proto.graph.node if node.op_type == "Softmax"}
    return any(node.op_type == "MatMul" and weights.intersection(node.input) for node in model.proto.graph.node)


def _fused(model: Model) -> Model:
    with transformer_tools("optimizer", "fusion_options") as (optimizer, options):
        chosen = options.FusionOptions(_MODEL_TYPE)
        chosen.use_multi_head_attention = True
        for name in ("gelu", "bias_gelu", "skip_layer_norm", "bias_skip_layer_norm", "embed_layer_norm"):
            setattr(chosen, f"enable_{name}", False)
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        made = optimizer.optimize_by_fusion(proto, _MODEL_TYPE, 0, 0, chosen).model
    made.producer_name, made.producer_version = model.proto.producer_name, model.proto.producer_version
    _restore_shapes(made, model.proto)
    return Graph.from_model(Model(made, model.name)).to_model()  # which imports the foreign operator set


def _restore_shapes(made: onnx.ModelProto, before: onnx.ModelProto) -> None:
    """Give back the shapes that the model knew: behind a foreign op none could be derived."""
    known = {info.name for info in made.graph.value_info}
    live = {name for node in made.graph.node for name in node.output}
    made.graph.value_info.extend(
        value_info for value_info in before.graph.value_info if value_info.name in live - known
    )


def _left_out(model: Model, reason: str) -> Outcome:
    return Outcome(model, {}, (Note(NoteKind.WARNING, f"attention stays in parts: {reason}", "it runs so as well"),))
