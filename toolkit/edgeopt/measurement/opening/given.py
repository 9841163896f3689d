"""The model, target and recipe of every command, opened and bound to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors import Session, SessionOptions
from edgeopt.executors._guard import active_guard
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.graph.drift import measure_drift
from edgeopt.graph.files.written_shapes import told_of
from edgeopt.graph.model import Model, find_model, fix_inputs, load_model
from edgeopt.graph.tensors import Tensors, TensorSpec, fix_sizes
from edgeopt.measurement.accuracy.evaluate import model_inputs, require_metric
from edgeopt.measurement.accuracy.misreading import choose_by_labels
from edgeopt.measurement.opening.right_optimizations import (
    Correction,
    find_correction,
    find_engine_fault,
    made_up_samples,
)
from edgeopt.recipes.binding import Choice
from edgeopt.recipes.inputs.feeding import synthetic
from edgeopt.recipes.inputs.input_shapes import Shapes, fixed_shapes
from edgeopt.recipes.inputs.text_input import TextInput, fill_of, vocabulary_size
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import choose_recipe
from edgeopt.recipes.texts.tokenizer import Fill
from edgeopt.recipes.texts.vocabulary import require_vocabulary
from edgeopt.runtime.devices.availability import find_device
from edgeopt.system.declared.target import Target
from edgeopt.system.text import plural
from edgeopt.tasks import make_task

_OTHER_ENGINE = "the fault is the engine's: choose a target of another one, --target cpu"


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model, the device it is for, and how it is fed and read."""

    model: Model
    path: Path
    """Path of the model."""
    target: Target
    choice: Choice
    correction: Correction = field(default_factory=Correction)
    """How ONNX Runtime must be held back for the model; the target holds it back already."""
    fault: str = ""
    """How the target's own engine, another one, errs on the model; empty: nothing is known against it."""

    def fault_of(self, target: Target) -> str:
        """Return how the engine of another target errs on the model, as `find_engine_fault`."""
        recipe, inputs = self.choice.recipe, self.model.inputs
        return find_engine_fault(self.model, partial(_samples, self.model, recipe, inputs), target)

    def require_right_engine(self) -> None:
        """Raise where nothing that is made for the target can be right.

        Raises:
            UnsupportedError: If its engine errs on the model.
        """
        if self.fault:
            raise UnsupportedError(self.fault, remedy=_OTHER_ENGINE)

    @property
    def recipe(self) -> Recipe:
        """The recipe, bound to the model."""
        return self.choice.recipe


def open_given(
    model: str,
    target: str | Target,
    recipe: str | None,
    *,
    sizes: Shapes | None = None,
    fed: Shapes | None = None,
    labels: str | Path = "",
) -> OpenedModel:
    """Return what is named on a command line.

    Args:
        model: Path of an ONNX file, or the name of a shipped model.
        target: Shipped name, or path of a TOML file; or the profile itself, of a device elsewhere.
        recipe: Shipped name or path; None: read from the model.
        sizes: Whole shapes of inputs by name, for what the model leaves free.
        fed: Shapes of the tensors that it will be fed, one sample; None: pictures.
        labels: Path of labels; empty: none.

    Raises:
        EdgeoptError: If one cannot be found, read or bound, or the recipe knows no metric on labels.
    """
    device = find_device(target) if isinstance(target, str) else target
    path = find_model(model)
    loaded = load_model(path)
    inputs = fix_sizes(loaded.inputs, sizes or {})
    choice = choose_recipe(recipe, path, inputs, loaded.outputs, loaded.metadata, fed, may_rival=bool(labels))
    samples = partial(_samples, loaded, choice.recipe, inputs)
    correction, fault = find_correction(loaded, samples, device), find_engine_fault(loaded, samples, device)
    if guard := active_guard():
        guard.entries = correction.entries
    choice = choose_by_labels(choice, loaded, Path(labels), correction.entries)
    if sizes:
        choice = replace(choice, recipe=choice.recipe.with_inputs(inputs))
    loaded = _with_ranks(loaded, choice.recipe)
    own, of_lengths = settled(choice.recipe, loaded, inputs, correction.applied_to(device))
    choice = replace(choice, recipe=own)
    require_metric(choice.recipe, labels)
    notes = (
        *_require_tokens(loaded, choice.recipe),
        *_defaults(loaded),
        *_stale(loaded),
        *correction.notes,
        *of_lengths,
    )
    notes = (*notes, Note(NoteKind.WARNING, fault, _OTHER_ENGINE)) if fault else notes
    choice = replace(choice, notes=(*choice.notes, *notes))
    return OpenedModel(loaded, path, correction.applied_to(device), choice, correction, fault)


def filled_to_length(given: OpenedModel, why: str) -> OpenedModel:
    """Return a model of texts with every text filled to one length, and a note that says why; any other as it is."""
    recipe = given.recipe
    if recipe.kind != "text" or recipe.tokenizer.fill is Fill.LENGTH:
        return given
    length = recipe.input.shapes[recipe.tokenizer.ids][1]
    note = Note(NoteKind.INFO, f"every text is filled to {plural(length, 'token')}: {why}")
    notes = [each for each in given.choice.notes if not each.detail.startswith(OWN_LENGTH)]
    recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, fill=Fill.LENGTH))
    return replace(given, choice=replace(given.choice, recipe=recipe, notes=(*notes, note)))


def _samples(model: Model, recipe: Recipe, inputs: Sequence[TensorSpec]) -> list[Tensors]:
    """Return what shows whether an engine computes the model right: made up in the shapes that it is fed."""
    try:
        if recipe.kind == "picture" and not recipe.input.size:
            return made_up_samples(model, fixed_shapes(recipe, inputs))
        task = make_task(recipe, inputs, model.outputs, evaluating=True)
        return list(model_inputs(task, synthetic(recipe, inputs).spread(2)))
    except EdgeoptError:  # a size stays free, or the recipe reads something else: who feeds the model is told so
        return made_up_samples(model, {spec.name: spec.shape for spec in inputs})


def _with_ranks(model: Model, recipe: Recipe) -> Model:
    """Return the model with the recipe's shapes on inputs of which it tells none: engines have no word for that."""
    shapes = recipe.input.shapes
    unranked = [spec.name for spec in model.inputs if spec.is_unranked]
    return fix_inputs(model, {name: shapes[name] for name in unranked if name in shapes})


def _defaults(model: Model) -> tuple[Note, ...]:
    """Return a warning of inputs with a default: nothing feeds them, and what is made of the model has them no more."""
    if not model.optional_inputs:
        return ()
    count = plural(len(model.optional_inputs), "optional input")
    text = (
        f"{count} of the model: {', '.join(model.optional_inputs)}; what is made of it holds the default as a constant"
    )
    return (Note(NoteKind.WARNING, text, "where an app gives another value, take the default out of the model"),)


def _stale(model: Model) -> tuple[Note, ...]:
    """Return a warning of shapes that contradicted the inputs: the model was read without them."""
    text = told_of(model.stale)
    return (Note(NoteKind.WARNING, text, "they are left out and derived anew"),) if text else ()


def _require_tokens(model: Model, recipe: Recipe) -> tuple[Note, ...]:
    """Return a warning where a recipe's tokenizer may be another model's.

    Raises:
        UnsupportedError: If it is, as `require_vocabulary` tells.
    """
    rows = embedded_rows(model, recipe.tokenizer.ids) if recipe.kind == "text" else None
    return () if rows is None else require_vocabulary(recipe.tokenizer.file, vocabulary_size(recipe), rows)


# How many different tokens a model knows: the rows of the table that its input of tokens is looked up in.

_KEEPING = frozenset({"Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Ops that keep the numbers of tokens."""


def embedded_rows(model: Model, name: str) -> int | None:
    """Return the rows of the smallest table that an input's numbers choose from; None where there is none.

    Args:
        model: Any.
        name: Of the input.
    """
    graph = model.proto.graph
    sizes = {constant.name: constant.dims[0] for constant in graph.initializer if constant.dims}
    known, result = {name}, list[int]()
    for node in graph.node:
        if node.op_type in _KEEPING and node.input and node.input[0] in known:
            known.update(node.output)
        if node.op_type == "Gather" and node.input[1] in known and node.input[0] in sizes:
            result.append(int(sizes[node.input[0]]))
    return min(result, default=None)


# Whether a model of texts may read each at its own length, and several together: found out by running it.

TOLERANCE = 1e-3
"""Error over signal, root mean square, as for a rewrite: what is summed in another order stays below 1e-5 in float."""
_TEXTS = 3
"""Made-up texts of different lengths: the shortest, the longest, and one between them."""
_FILLED = 16
"""Tokens behind the longest text to which all are filled, where they are compared with themselves."""
OWN_LENGTH = "texts are read at their own length"
_FIXED = 'fill = "length" under [tokenizer] of the recipe leaves this check out'


@dataclass(frozen=True, slots=True)
class FillTrial:
    """How a form of a model may read texts, and why no more than that."""

    fill: Fill
    why: str = ""


def settled(recipe: Recipe, model: Model, inputs: Sequence[TensorSpec], target: Target) -> tuple[Recipe, list[Note]]:
    """Return the recipe with how texts are filled, as the model stands it, and what a user should know of that.

    Args:
        recipe: Bound to the model.
        model: As it was given.
        inputs: Of the model, with the shapes that a user fixed.
        target: Only ONNX Runtime on a processor reads texts of any length; others compile for one.
    """
    if recipe.kind != "text" or fill_of(replace(recipe.tokenizer, fill=Fill.ALONE), inputs) is Fill.LENGTH:
        return recipe, []
    length = recipe.input.shapes[recipe.tokenizer.ids][1]
    filled = replace(recipe, tokenizer=replace(recipe.tokenizer, fill=Fill.LENGTH))
    if target.executor != "onnxruntime" or target.device != "cpu":
        return filled, []
    text = f"every text is filled to {plural(length, 'token')}"
    if recipe.tokenizer.fill is Fill.LENGTH:
        has_mask = any(spec.name == recipe.tokenizer.mask for spec in inputs)
        why = f"the model has no input {recipe.tokenizer.mask} that tells which tokens are filled: {text}"
        return recipe, [] if has_mask else [Note(NoteKind.INFO, why, 'fill = "alone" under [tokenizer] fills none')]
    session = EXECUTOR.open(model.source, SessionOptions(entries=target.options))
    try:
        reading = reading_of(session, recipe)
    except EdgeoptError:  # no tokenizer is here: who feeds it texts is told so
        return filled, []
    finally:
        session.close()
    if reading.fill is Fill.LENGTH:
        return filled, [Note(NoteKind.WARNING, f"{text}: {reading.why}", _FIXED)]
    recipe = replace(recipe, tokenizer=replace(recipe.tokenizer, fill=reading.fill))
    text = f"{OWN_LENGTH}, up to {plural(length, 'token')}"
    text += f", one by one: {reading.why}" if reading.why else ""
    return recipe, [Note(NoteKind.INFO, text)]


def reading_of(session: Session, recipe: Recipe, tolerance: float = TOLERANCE) -> FillTrial:
    """Return how a model may read texts: what is filled, and who reads beside a text, must not change its answer.

    Args:
        session: An open form of the model.
        recipe: Bound to it; it says what is tried.
        tolerance: Largest error over signal, root mean square.
    """
    feed, texts = TextInput(recipe, session.inputs), _texts_of(recipe, session.inputs)
    lengths = [feed.length_of(text).tokens for text in texts]
    cap = recipe.input.shapes[recipe.tokenizer.ids][1]
    try:
        alone = [_run(session, feed.filled_to(text, length)) for text, length in zip(texts, lengths, strict=True)]
        most = min(max(lengths) + _FILLED, cap)
        filled = [_run(session, feed.filled_to(text, most)) for text in texts]
    except EdgeoptError as error:
        return FillTrial(Fill.LENGTH, f"the model does not read each at its own length ({error.problem})")
    has_mask = any(spec.name == recipe.tokenizer.mask for spec in session.inputs)  # else a recipe asks for no filling
    if has_mask and not all(_is_alike(*pair, 0, tolerance) for pair in zip(alone, filled, strict=True)):
        return FillTrial(Fill.LENGTH, "tokens that fill a text change its answer")
    if recipe.tokenizer.fill is Fill.ALONE:
        return FillTrial(Fill.ALONE)
    try:
        together = _run(session, feed.together(texts)[0])
    except EdgeoptError as error:
        return FillTrial(Fill.ALONE, f"the model does not read several together ({error.problem})")
    if not all(_is_alike(own, together, row, tolerance) for row, own in enumerate(alone)):
        return FillTrial(Fill.ALONE, "an answer depends on the texts beside it")
    return FillTrial(Fill.TOGETHER)


def _texts_of(recipe: Recipe, inputs: Sequence[TensorSpec]) -> list[str]:
    frames = synthetic(recipe, inputs)
    texts = sorted((str(frames.read(i)) for i in range(len(frames))), key=len)
    return [texts[(len(texts) - 1) * i // (_TEXTS - 1)] for i in range(_TEXTS)]


def _run(session: Session, tensors: Tensors) -> Tensors:
    return {name: np.array(value) for name, value in session.run(tensors).items()}


def _is_alike(own: Tensors, other: Tensors, row: int, tolerance: float) -> bool:
    """Return whether a row of outputs is the answer that a text has by itself, as far as its own tokens go."""
    kept = dict[str, np.ndarray]()
    for name, value in own.items():
        rows = other[name]
        if rows.ndim != value.ndim or not value.ndim or len(rows) <= row:
            return False
        kept[name] = rows[row : row + 1][tuple(slice(size) for size in value.shape)]
    return measure_drift(own, kept).is_within(tolerance)
