"""Facts of the outputs that a recipe reads, from the graph: are scores probabilities, and which are not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeopt.errors import Note, NoteKind
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.heads import head_of
from edgeopt.recipes.outputs.output_shapes import CLASSIFIERS
from edgeopt.recipes.recipe import READERS, Recipe, Scores

_SUMMING = frozenset({"Gemm", "MatMul", "Conv", "Add", "GlobalAveragePool", "AveragePool", "QLinearConv"})
"""Ops that make sums of products: what leaves them is no probability."""
_WHOLE = ("Softmax", "QLinearSoftmax")
"""Ops whose results are probabilities that exclude one another."""
_FIRST_ALONE = frozenset({*CLASSIFIERS, *READERS, "argmax", "class_map", "heatmaps"})
"""Decoders that read the first output, whatever else there is; those of detectors say so."""


def with_told_columns(recipe: Recipe, outputs: Sequence[TensorSpec]) -> Recipe:
    """Return a recipe of a detector with what its outputs tell and it leaves open; what it says stays."""
    head = head_of(recipe.postprocess.decoder)
    return replace(recipe, postprocess=head.complete(recipe.postprocess, outputs)) if head else recipe


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
    if (head := head_of(numbers.decoder)) and head.scored:
        scores = head.scored(read)
        if numbers.scores is not Scores.USUAL or scores.op not in _SUMMING:
            return recipe, ()
        changed = replace(numbers, scores=Scores.LOGITS)
        text = f"{scores} ends in {scores.op}: its scores are read as logits"
    elif numbers.decoder == "probabilities" and read[0].op in _SUMMING:
        changed = replace(numbers, decoder="logits")
        text = f"{read[0]} ends in {read[0].op}: its scores are read as logits, and shown as probabilities"
    elif numbers.decoder == "logits" and read[0].op in _WHOLE:
        changed = replace(numbers, decoder="probabilities")
        text = f"{read[0]} ends in {read[0].op}: its scores are probabilities already"
    else:
        return recipe, ()
    return replace(recipe, postprocess=changed), (Note(NoteKind.INFO, text),)


def notes_of_unread(recipe: Recipe, outputs: Sequence[TensorSpec]) -> tuple[Note, ...]:
    """Return a warning of outputs that a recipe leaves unread; none where all are read."""
    own = _without_states(recipe, outputs) or [*outputs]
    decoder, first = recipe.postprocess.decoder, own[0]
    head = head_of(decoder)
    read = head.read(own) if head else own[:1] if decoder in _FIRST_ALONE else own
    others = [output for output in own if output not in read]
    if not others or recipe.embedded:
        return ()
    seen = f"output{'s' if len(read) > 1 else ''} {' and '.join(map(str, read))}"
    text = f"recipe {recipe.name!r} reads {seen} alone; not read: {', '.join(map(str, others))}"
    is_spare = all(output.shape == first.shape for output in others)  # as of a head that only training reads
    kind = NoteKind.INFO if is_spare else NoteKind.WARNING
    return (Note(kind, text, "where they belong to the answer, read all as they are: --recipe tensors"),)


def notes_of_guesses(recipe: Recipe) -> tuple[Note, ...]:
    """Return a warning of values of a recipe that nobody told; none where it names none."""
    if not recipe.guesses:
        return ()
    text = f"guesses in recipe {recipe.name!r}, which nobody checked: {', '.join(recipe.guesses)}"
    return (Note(NoteKind.WARNING, text, "correct them, then take each out of guesses in the recipe"),)


def _without_states(recipe: Recipe, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    states = set(recipe.input.states.values())
    return [output for output in outputs if output.name not in states]
