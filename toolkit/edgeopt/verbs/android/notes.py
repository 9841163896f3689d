"""Notes on models on a phone: what no time there holds, what differs between them, what was lost."""

from __future__ import annotations

from collections.abc import Sequence

from edgeopt.errors import Note, NoteKind
from edgeopt.measurement.opening.subject import Subject
from edgeopt.recipes.embedded import Embedded
from edgeopt.recipes.recipe import Recipe
from edgeopt.system.machine.place import PlaceLostError


def loss_of(error: PlaceLostError, kept: str) -> Note:
    """Return a warning that a phone was gone before its run was over.

    Args:
        error: What is known of it.
        kept: What there is of the run, in words.
    """
    text = f"the figures are of {kept} alone: {error.problem}"
    return Note(NoteKind.WARNING, text, "look at its cable, and measure again")


def outside_of(recipe: Recipe) -> tuple[Note, ...]:
    """Return what an app does besides, which no time of the phone holds."""
    parts = [part for part in (Embedded.PREPROCESS, Embedded.POSTPROCESS) if part not in recipe.embedded]
    if not parts or recipe.takes_arrays:
        return ()
    named = f"{' and '.join(parts)} {'does' if len(parts) == 1 else 'do'}"
    text = f"a frame on the phone is the model alone: the recipe's {named} not run there"
    hint = "edgeopt optimize --steps default,embed-preprocess,embed-postprocess puts them into the model"
    return (Note(NoteKind.WARNING, text, hint),)


def unlike(subjects: Sequence[Subject]) -> tuple[Note, ...]:
    """Return a warning where one model does what an app does for another, so that their frames are not the same."""
    parts = {subject.name: {*subject.recipe.embedded} for subject in subjects}
    if all(held == parts[subjects[0].name] for held in parts.values()):
        return ()
    texts = [f"{name} {' and '.join(sorted(held)) or 'none'}" for name, held in parts.items()]
    text = f"models hold different parts of a frame: {', '.join(texts)}"
    return (Note(NoteKind.WARNING, text, "the ratio includes that: compare models that hold the same"),)
