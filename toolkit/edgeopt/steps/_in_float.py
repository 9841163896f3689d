"""Compute in float what a model rounds anew for each input; the answers differ by that rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model
from edgeopt.graph.outcome import Outcome
from edgeopt.graph.tensors import Tensors
from edgeopt.passes import Phase, passes_of
from edgeopt.steps.fuse import fuse
from edgeopt.system.text import plural


def may_round(model: Model) -> bool:
    """Return whether `in_float` may find something to do, without a look at the graph."""
    return "ConvInteger" in model.op_counts


def in_float(model: Model, inputs: Sequence[Tensors] = (), *, rewrites: Sequence[str] = ()) -> Outcome:
    """Return the model with its dynamic convolutions in float, fused; the model itself where it has none.

    Args:
        model: A model with fixed shapes.
        inputs: Real inputs on which fusing must change nothing.
        rewrites: As in `fuse`.
    """
    graph = Graph.from_model(model)
    graph.infer_shapes()
    changes = {name: count for name, change in passes_of(Phase.FLOAT).items() if (count := change(graph))}
    if not changes:
        return Outcome(model, {})
    graph.remove_unused()
    text = f"{plural(sum(changes.values()), 'convolution')} in float: answers differ by the original's rounding"
    note = Note(NoteKind.INFO, text, "--eval with labels scores both")
    fused = fuse(graph.to_model(), inputs, rewrites=rewrites)
    return replace(fused, changes={**changes, **fused.changes}, notes=(note, *fused.notes))
