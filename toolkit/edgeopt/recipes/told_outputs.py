"""What the graph tells of the outputs that a recipe reads: whether scores are probabilities, and which are not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.columns import BY_WIDTH, DECODER, columns_in_name
from edgeopt.recipes.output_shapes import CLASSIFIERS
from edgeopt.recipes.recipe import READERS, Recipe, Scores
from edgeopt.recipes.suppressed_outputs import boxes_and_classes

_SUMMING = frozenset({"Gemm", "MatMul", "Conv", "Add", "GlobalAveragePool", "AveragePool", "QLinearConv"})
"""Ops that make sums of products: what leaves them is no probability."""
_WHOLE = ("Softmax", "QLinearSoftmax")
"""Ops whose results are probabilities that exclude one another."""
_FIRST_ALONE = frozenset(
    {*CLASSIFIERS, *READERS, "argmax", "class_map", "yolox", "yolov8", "yolov5", "end_to_end", "heatmaps"}
)
"""Decoders that read the first output, whatever else there is."""


def with_told_columns(recipe: Recipe, outputs: Sequence[TensorSpec]) -> Recipe:
    """Return a recipe of rows with the columns as the output's name or width tells; what the recipe says stays."""
    numbers = recipe.postprocess
    if numbers.decoder != DECODER or numbers.columns or not outputs or not outputs[0].shape:
        return recipe
    width = outputs[0].shape[-1]
    told = columns_in_name(outputs[0].name)
    if not told or (isinstance(width, int) and width != len(told)):
        told = BY_WIDTH.get(width, ()) if isinstance(width, int) else ()
    return replace(recipe, postprocess=replace(numbers, columns=told))


def with_told_scores(recipe: Recipe, outputs: Sequence[TensorSpec]) -> tuple[Recipe, tuple[Note, ...]]:
    """Return the recipe with scores as the graph ends, and a note where that changes it.

    Logits that are shown as probabilities, and probabilities that go through another softmax, are never meant.

    Args:
        recipe: Any.
        outputs: Of the model, in its order.
    """
    numbers, read = recipe.postprocess, _without_states(recipe, outputs)
    if not read or recipe.embedded:
        return recipe, ()
    if numbers.decoder == "ssd_corners":
        scores = next((output for output in read if output.shape[-1:] != (4,)), read[0])
        if numbers.scores is not Scores.USUAL or scores.op not in _SUMMING:
            return recipe, ()
        changed = replace(numbers, scores=Scores.LOGITS)
        told = f"{scores} ends in {scores.op}: its scores are read as logits"
    elif numbers.decoder == "probabilities" and read[0].op in _SUMMING:
        changed = replace(numbers, decoder="logits")
        told = f"{read[0]} ends in {read[0].op}: its scores are read as logits, and shown as probabilities"
    elif numbers.decoder == "logits" and read[0].op in _WHOLE:
        changed = replace(numbers, decoder="probabilities")
        told = f"{read[0]} ends in {read[0].op}: its scores are probabilities already"
    else:
        return recipe, ()
    return replace(recipe, postprocess=changed), (Note(NoteKind.INFO, told),)


def notes_of_unread(recipe: Recipe, outputs: Sequence[TensorSpec]) -> tuple[Note, ...]:
    """Return a warning of outputs that a recipe leaves unread; none where all are read."""
    own = _without_states(recipe, outputs) or [*outputs]
    decoder, first = recipe.postprocess.decoder, own[0]
    read = [*boxes_and_classes(own)] if decoder == "scored_boxes" else own[:1] if decoder in _FIRST_ALONE else own
    others = [output for output in own if output not in read]
    if not others or recipe.embedded:
        return ()
    seen = f"output{'s' if len(read) > 1 else ''} {' and '.join(map(str, read))}"
    told = f"recipe {recipe.name!r} reads {seen} alone; not read: {', '.join(map(str, others))}"
    is_spare = all(output.shape == first.shape for output in others)  # as of a head that only training reads
    kind = NoteKind.INFO if is_spare else NoteKind.WARNING
    return (Note(kind, told, "where they belong to the answer, read all as they are: --recipe tensors"),)


def notes_of_guesses(recipe: Recipe) -> tuple[Note, ...]:
    """Return a warning of values of a recipe that nobody told; none where it names none."""
    if not recipe.guesses:
        return ()
    told = f"guesses in recipe {recipe.name!r}, which nobody checked: {', '.join(recipe.guesses)}"
    return (Note(NoteKind.WARNING, told, "correct them, then take each out of guesses in the recipe"),)


def _without_states(recipe: Recipe, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    states = set(recipe.input.states.values())
    return [output for output in outputs if output.name not in states]
