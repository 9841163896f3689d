"""The recipe that configurations of Hugging Face beside a model tell, bound to the model's own tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgeopt.graph.files.exported_folder import folder_name
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import Choice, bind_recipe
from edgeopt.recipes.drafting.hugging_face import folder_of, read_configuration, recipe_told
from edgeopt.recipes.drafting.text_drafting import text_recipe
from edgeopt.recipes.inputs.input_shapes import Shapes


def configured(
    path: Path | None,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    taken: Shapes,
) -> Choice | None:
    """Return the recipe that the configurations beside a model tell; None where they tell too little.

    Args:
        path: Of the model.
        inputs: Of the model.
        outputs: Of the model.
        metadata: What the exporter wrote.
        taken: Shapes of the tensors that are fed, of inputs with free dimensions.

    Raises:
        EdgeoptError: If a configuration cannot be read, or its recipe does not fit the model.
    """
    folder = folder_of(path) if path else None
    if folder is None or (configuration := read_configuration(folder)) is None:
        return None
    names = [output.name for output in outputs]
    task = configuration.task_of([spec.name for spec in inputs], names)
    reason = f"told by the configurations in {folder}" + (f": {task.name}" if task else "")
    if of_texts := text_recipe(folder, configuration, inputs, outputs):
        bound = bind_recipe(of_texts[0], reason, inputs, outputs, metadata, taken)
        return replace(bound, is_given=True)
    recipe, notes = recipe_told(configuration, inputs, names, name=folder_name(folder), source=folder.name)
    if recipe is None:
        return None
    choice = bind_recipe(recipe, reason, inputs, outputs, metadata, taken)
    return replace(choice, notes=(*notes, *choice.notes), is_given=True)
