"""The growth that a rewrite may bring to a model's file: 1 %, and nothing at all where it improves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.system.text import format_bytes

OPSET_OF_PER_CHANNEL = 13
"""QuantizeLinear has an axis from here on: a model below it has no INT8 form."""
_LAYERS = frozenset({"Conv", "Gemm", "MatMul"})
"""Ops that run on integers."""
GROWTH_RATIO = 1.01
"""A file may grow this much; weights hide that in all models but the smallest."""


def kept_small(model: Model, outcome: Outcome, others: Sequence[Outcome] = ()) -> Outcome:
    """Return what a step made if its file is no more than 1 % larger than what it was given, else something smaller.

    Shapes and names that the given file did not hold are taken out first: whoever needs them derives them again. Then
    come `others`, and at last the given model as it is, byte for byte.

    Args:
        model: What the step was given.
        outcome: What it made of it.
        others: Less of it, the best first.
    """
    if outcome.is_unchanged and _is_idle(model, outcome.model):
        return Outcome(model, {}, outcome.notes)
    if model.size_bytes * GROWTH_RATIO >= outcome.model.size_bytes:
        return outcome
    bare = _without_names(model, outcome)
    if bare.model.size_bytes <= model.size_bytes * GROWTH_RATIO and not _is_idle(model, bare.model):
        return bare
    smaller = [_without_names(model, other) for other in others]
    least = Outcome(model, {})
    if smaller and model.inputs != smaller[-1].model.inputs:  # what other steps need: fixed shapes
        least = smaller[-1]
    if smaller and _may_be_integer(model, smaller[0].model):  # and scales per channel
        smaller, least = smaller[:1], smaller[0]
    fitting = (other for other in smaller if other.model.size_bytes <= model.size_bytes * GROWTH_RATIO)
    kept, notes = next(fitting, least), outcome.notes
    if model.op_counts != outcome.model.op_counts:
        sizes = f"from {format_bytes(model.size_bytes)} to {format_bytes(outcome.model.size_bytes)}"
        notes += (Note(NoteKind.INFO, f"what was rewritten made the file grow {sizes}, so it is left out"),)
    return Outcome(kept.model, kept.changes, notes) if not _is_idle(model, kept.model) else Outcome(model, {}, notes)


def _without_names(model: Model, made: Outcome) -> Outcome:
    return replace(made, model=Model(_bare(model.proto, made.model.proto), made.model.name))


def _bare(model: onnx.ModelProto, made: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without the shapes of tensors and the names of nodes that the given one did not hold."""
    shaped, named = {one.name for one in model.graph.value_info}, {one.name for one in model.graph.node}
    proto = onnx.ModelProto()
    proto.CopyFrom(made)
    kept = [value_info for value_info in proto.graph.value_info if value_info.name in shaped]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)
    for node in proto.graph.node:
        if node.name not in named:
            node.ClearField("name")
    return proto


def _is_idle(model: Model, made: Model) -> bool:
    """Return whether nothing was gained: the same ops, the same inputs, and no opset that INT8 needs."""
    return made.op_counts == model.op_counts and made.inputs == model.inputs and not _may_be_integer(model, made)


def _may_be_integer(model: Model, made: Model) -> bool:
    """Return whether layers can run on integers now and could not before: the opset was too low for that."""
    return model.opset < OPSET_OF_PER_CHANNEL <= made.opset and bool(_LAYERS & made.op_counts.keys())
