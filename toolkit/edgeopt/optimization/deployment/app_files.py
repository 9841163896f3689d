"""Files for an app that brings its own runtime, before they are stored, and how far their answers lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edgeopt.executors import Session
from edgeopt.graph.drift import measure_drift, worst_drift
from edgeopt.graph.model import Model
from edgeopt.graph.tensors import Tensors
from edgeopt.optimization.candidate import Candidate
from edgeopt.optimization.run import Run
from edgeopt.recipes.recipe import Recipe
from edgeopt.steps._context import CHECKED_PICTURES

_READ = ("name", "task", "class_names", "input", "preprocess", "postprocess")
"""Parts of a recipe that an app needs to make the input of a frame and to read the outputs."""


@dataclass(frozen=True, slots=True)
class AppFiles:
    """Files of one engine."""

    candidate: Candidate
    """The one whose model they hold."""
    files: Mapping[str, bytes]
    facts: Mapping[str, Any]
    """As JSON, for `edgeopt.json`."""
    standing: str
    """Speed, accuracy and numbers in the words of one line."""


def read_by_apps(recipe: Recipe) -> Mapping[str, Any]:
    """Return the parts of a recipe that an app reads, as JSON."""
    values = asdict(recipe)
    del values["preprocess"]["decode"]  # an app decodes files itself
    return {key: values[key] for key in _READ}


def answers(run: Run, open_session: Callable[[], Session], model: Model) -> list[Tensors]:
    """Return what a session makes of the samples on which drift is measured.

    Args:
        run: With its samples.
        open_session: Opens it; it is closed here.
        model: What the session runs, whose inputs are made.
    """
    session = open_session()
    try:
        return [session.run(_as_taken(session, inputs)) for inputs in run.context.inputs(CHECKED_PICTURES, model)]
    finally:
        session.close()


def original_db(run: Run, candidate: Candidate, open_session: Callable[[], Session], model: Model) -> float | None:
    """Return how far a session answers from the original, on real samples, in decibels.

    None where the candidate takes smaller pictures, whose answers have other positions.
    """
    if candidate.input_size != run.candidates[0].input_size:
        return None
    return distance_db(run.context.original_outputs(), answers(run, open_session, model))


def distance_db(expected: list[Tensors], made: list[Tensors]) -> float:
    """Return the worst signal to noise of answers, in decibels."""
    sqnr_db: float = worst_drift(map(measure_drift, expected, made)).sqnr_db
    return sqnr_db


def _as_taken(session: Session, inputs: Tensors) -> Tensors:
    """Return inputs in the order of axes of a file for apps, which may have the channels of pictures last."""
    return {
        spec.name: inputs[spec.name] if inputs[spec.name].shape == spec.shape else np.moveaxis(inputs[spec.name], 1, -1)
        for spec in session.inputs
    }
