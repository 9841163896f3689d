"""The facts that a recipe is drafted from, and the draft: a recipe with the origin of each of its values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import ChosenRecipe, bind_recipe
from edgeopt.recipes.drafting.text_drafting import NOT_KNOWN
from edgeopt.recipes.matching import Interface
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.recipe_text import recipe_text


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a model."""

    name: str
    path: Path
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]
    first_ops: tuple[str, ...] = ()
    """Ops that read its input."""
    answers: tuple[NDArray[Any], ...] = ()
    """Outputs for a few made-up pictures, of a model whose only output is a row or a table of numbers; empty: it was
    not run."""
    sound_rate_hz: int = 0
    """Sound rate of the example that was given, where it is a sound; 0: none was."""

    @property
    def interface(self) -> Interface:
        """The model as recipes are matched with it."""
        return Interface(self.inputs, self.outputs, self.metadata)

    def bound(self, recipe: Recipe) -> Recipe:
        """Return a recipe bound to the model's tensors, as `bind_recipe` does."""
        return bind_recipe(ChosenRecipe(recipe), self.inputs, self.outputs, self.metadata, {}).recipe


@dataclass(slots=True)
class Draft:
    """A recipe, and what is known of each of its keys."""

    recipe: Recipe
    comments: dict[str, str] = field(default_factory=dict)
    """Key, such as `preprocess.colour`, to where its value is from."""

    @property
    def not_known(self) -> tuple[str, ...]:
        """The keys whose values are guesses."""
        guessed = [key for key, comment in self.comments.items() if comment.startswith(NOT_KNOWN)]
        return tuple(dict.fromkeys((*guessed, *self.recipe.guesses)))

    def text(self, facts: Facts, labels: str, alphabet: str = "") -> str:
        """Return the commented TOML text.

        Args:
            facts: Of the model.
            labels: File of class names beside the recipe; empty: none.
            alphabet: File of characters beside the recipe; empty: none, or the model's metadata tell them.
        """
        inputs, outputs = (", ".join(map(str, ones)) for ones in (facts.inputs, facts.outputs))
        head = [
            f"Written by edgeopt recipe from {facts.path.name} (opset {facts.opset}).",
            f"Inputs: {inputs}. Outputs: {outputs}.",
        ]
        if self.not_known:
            head.append(f"Guesses, to be checked: {', '.join(self.not_known)}.")
        alphabet_file = replace(self.recipe.alphabet, file=alphabet, characters="")
        written = replace(self.recipe, alphabet=alphabet_file, guesses=self.not_known)
        return recipe_text(written, name=written.name, labels=labels, head=head, comments=self.comments)
