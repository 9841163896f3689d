"""Facts of a model, and where a target's engine puts its nodes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import TensorProto, defs, helper

from edgeopt.errors import EdgeoptError, InvalidFileError, MissingDependencyError, Note, NoteKind
from edgeopt.executors import SessionOptions
from edgeopt.executors._guard import guarded
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.facts.integers import Integers, read_integers
from edgeopt.graph.facts.multiply_adds import count_multiply_adds, count_numbers
from edgeopt.graph.graph import Graph
from edgeopt.graph.model import Model, find_model, fix_inputs, load_model
from edgeopt.graph.tensors import TensorSpec
from edgeopt.inspection.writer_facts import WriterFacts
from edgeopt.measurement.opening.right_optimizations import Correction, find_correction, made_up_samples
from edgeopt.passes import Phase, passes_of
from edgeopt.recipes.matching import Interface, recognised, shipped_recipes
from edgeopt.recipes.metadata import other_task
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.report.facts import WorkloadFacts
from edgeopt.runtime.devices.availability import find_device
from edgeopt.steps.compile._placement import Partition, explain_placement
from edgeopt.system.declared.target import Target, find_target

_SURELY_KNOWN = 21
"""Opset that edgeopt itself writes: every ONNX Runtime that it takes knows it."""


def notes_on_opset(opset: int) -> tuple[Note, ...]:
    """Return a warning where ONNX Runtime refuses models of this opset, or the package onnx does not know it.

    ONNX Runtime is asked with a model of one node: it tells its newest opset to nobody who does not exceed it.
    """
    if opset <= _SURELY_KNOWN:
        return ()
    try:
        EXECUTOR.open(_of_one_node(opset), SessionOptions(threads=1)).close()
    except InvalidFileError as error:
        return (Note(NoteKind.WARNING, error.problem, error.remedy),)
    except MissingDependencyError:
        pass
    newest = defs.onnx_opset_version()
    if opset <= newest:
        return ()
    text = f"opset {opset} is newer than {newest}, the newest that the installed onnx knows"
    return (Note(NoteKind.WARNING, text, f"export it with opset {newest} or an older one"),)


def _of_one_node(opset: int) -> bytes:
    info, other = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "one", [info], [other])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return bytes(made.SerializeToString())


_STATIC = ("fold_constants", "make_shape_static", "make_slice_static")
"""Passes that compute sizes which follow from the inputs'."""
_MOST_ROUNDS = 20
_HOST = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection(WorkloadFacts):
    """The facts of one model."""

    name: str
    """Name of the model."""
    size_bytes: int
    """Size of its file, with files of weights."""
    opset: int
    """Version of ONNX's own ops."""
    parameters: int
    """Numbers in its weights."""
    multiply_adds: int | None
    """None where a shape is free, or not inferred."""
    integers: Integers
    """Which weighted layers are quantized already."""
    inputs: tuple[TensorSpec, ...]
    """Names, types and shapes of the inputs."""
    outputs: tuple[TensorSpec, ...]
    """Those of the outputs."""
    ops: Mapping[str, int]
    """Nodes by op."""
    recipe: str
    """How it is fed and read, and why; or why no recipe fits."""
    target: str = ""
    """Name of the device; empty: none was named."""
    partition: Partition | None = None
    """Where the target puts the nodes; None without a target."""
    writes: str = ""
    """Writes of a language model: its context, tokens and cache."""
    measured: str = ""
    """Figures of the bundle of a language model: what `optimize` found."""

    @property
    def verdict(self) -> str:
        """Where the nodes run, in one line."""
        if self.partition is None or not (self.partition.nodes or self.partition.problem):
            return "the engine does not say where nodes run"
        return self.partition.verdict


@guarded()
def inspect(
    model: str,
    *,
    target: str | None = None,
    recipe: str | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    writer: WriterFacts | None = None,
) -> Inspection:
    """Return the facts of a model, with a target also where its nodes run.

    Args:
        model: Path of an ONNX file, or the name of a shipped model; of a language model a bundle too.
        target: Shipped name, or path of a TOML file; None: no placement.
        recipe: Shipped name or path; None: read from the model.
        shapes: Whole shapes of inputs by name, for what the model leaves free.
        writer: What is known of a model that writes tokens; None: it answers frames.

    Raises:
        EdgeoptError: If the model, the target or the recipe asked for cannot be read.
    """
    path = writer.file if writer else find_model(model)
    loaded = fix_inputs(load_model(path), shapes or {})
    chosen = writer.recipe if writer and recipe is None else _chosen(recipe, path, loaded)
    device = find_device(target) if target else None
    correction = Correction() if writer else _correction(loaded, device or find_target(_HOST))
    device = correction.applied_to(device) if device else None
    return Inspection(
        name=loaded.name,
        size_bytes=loaded.size_bytes,
        opset=loaded.opset,
        parameters=count_numbers(loaded),
        multiply_adds=_multiply_adds(loaded),
        integers=read_integers(loaded),
        inputs=loaded.inputs,
        outputs=loaded.outputs,
        ops=loaded.op_counts,
        recipe=chosen,
        writes=writer.writes if writer else "",
        measured=writer.measured if writer else "",
        target=device.name if device else "",
        partition=explain_placement(loaded, device) if device else None,
        notes=(*notes_on_opset(loaded.opset), *correction.notes),
    )


def _correction(model: Model, target: Target) -> Correction:
    """Return how ONNX Runtime must be held back for the model; a model that it cannot run at all is inspected too."""
    try:
        return find_correction(model, lambda: made_up_samples(model), target)
    except EdgeoptError as error:
        return Correction(notes=(Note(NoteKind.WARNING, error.problem, error.remedy),))


def _chosen(recipe: str | None, path: Path, loaded: Model) -> str:
    """Return which recipe fits, and why; a recipe that was asked for must fit."""
    try:
        choice = choose_recipe(recipe, path, loaded.inputs, loaded.outputs, loaded.metadata)
    except EdgeoptError as error:
        if recipe is not None:
            raise
        fitting, _ = recognised(Interface(loaded.inputs, loaded.outputs, loaded.metadata))
        if not fitting and not other_task(loaded.metadata, shipped_recipes()):
            return f"none of the shipped ones: edgeopt recipe {shlex.quote(str(path))} writes one"
        return f"none: {error.problem}"
    guesses = f"; guesses in it: {', '.join(choice.recipe.guesses)}" if choice.recipe.guesses else ""
    return f"{choice.recipe.name}: {choice.reason}{guesses}"


def _multiply_adds(model: Model) -> int | None:
    """Count; sizes that follow from the inputs, but which shape inference does not follow, are computed first."""
    known = count_multiply_adds(model)
    if known is not None or not all(isinstance(size, int) and size > 0 for spec in model.inputs for size in spec.shape):
        return known
    try:
        graph, passes = Graph.from_model(model), passes_of(Phase.SIMPLIFY)
        for _ in range(_MOST_ROUNDS):
            graph.infer_shapes()
            if not sum(passes[name](graph) for name in _STATIC):
                break
        return count_multiply_adds(graph.to_model())
    except EdgeoptError:
        return None
