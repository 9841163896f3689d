"""Text classification: one label out of many for a text, or for a pair of texts. Top-1 and macro F1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.sample_drawing import draw_classes_of_text
from edgeopt.recipes.inputs.text_input import TextInput
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels.texts import TextLabels
from edgeopt.recipes.metrics import NamedClasses
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.text import plural, short
from edgeopt.tasks.classification import Classes, Classification


class TextClassification(Classification):
    """One classifier of texts: its tokens, its best classes, their score."""

    draws: ClassVar[Sequence[str]] = ("text",)

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If it cannot read the model's output, or names no tokenizer.
            MissingDependencyError: If the package `tokenizers` is not installed.
        """
        require_tokenizer(recipe)
        super().__init__(recipe, inputs, outputs, evaluating)
        self._input = TextInput(recipe, inputs)

    def preprocess(self, frame: Sample) -> tuple[Tensors, None]:
        """Return the tokens of a text; arrays stay unchanged."""
        return (frame if isinstance(frame, Mapping) else self._input(frame)[0]), None

    def draw(self, frame: Any, answer: Classes, height: int = HEIGHT) -> Frame:
        """Return a picture of the text over its best classes."""
        return draw_classes_of_text(str(frame), self._named(answer), height)

    def _ranks(self, answers: Sequence[Classes], labels: Labels) -> NamedClasses:
        ranks = super()._ranks(answers, labels)
        first = [int(answer.indices[0]) if len(answer) else -1 for answer in answers]
        true = np.array(self._classes_of(labels), np.int64)
        return NamedClasses(ranks.places, ranks.classes, true, np.array(first, np.int64))

    def _classes_of(self, labels: Labels) -> Sequence[int]:
        """Return the index of each text's class, which the file names or numbers.

        Raises:
            InvalidFileError: If the labels are no classes of texts, or name another class.
        """
        if not isinstance(labels, TextLabels):
            raise InvalidFileError(
                f"{labels.source} holds no classes of texts", remedy="pass a CSV or JSONL with text and label"
            )
        known = {name: i for i, name in enumerate(self._recipe.class_names)}
        classes = [known.get(class_, int(class_) if _is_index(class_) else -1) for class_ in labels.classes]
        wrong = [class_ for class_, index in zip(labels.classes, classes, strict=True) if index < 0]
        if wrong:
            names = ", ".join([*known][:8]) or "numbered from 0"
            text = f"{plural(len(wrong), 'label')} no class of the model, for example {short(wrong[0])}"
            raise InvalidFileError(
                f"{labels.source}: {text}; its classes are {names}",
                remedy="name the classes as the recipe does, or write their indices",
            )
        return classes


def require_tokenizer(recipe: Recipe) -> None:
    """Raise UnsupportedError where a task of texts has no tokenizer."""
    if recipe.kind != "text":
        raise UnsupportedError(
            f"recipe {recipe.name!r} has task {recipe.task} and no tokenizer",
            remedy='write file = "tokenizer.json" under [tokenizer], a file beside the recipe',
        )


def _is_index(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


TASK = TextClassification
