"""The model, target and recipe of every command, opened and bound to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors._guard import active_guard
from edgeopt.graph.facts.embedded_rows import embedded_rows
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
from edgeopt.recipes.inputs.text_input import vocabulary_size
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recognise import choose_recipe
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
    require_metric(choice.recipe, labels)
    notes = (*_require_tokens(loaded, choice.recipe), *_defaults(loaded), *_stale(loaded), *correction.notes)
    notes = (*notes, Note(NoteKind.WARNING, fault, _OTHER_ENGINE)) if fault else notes
    choice = replace(choice, notes=(*choice.notes, *notes))
    return OpenedModel(loaded, path, correction.applied_to(device), choice, correction, fault)


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
