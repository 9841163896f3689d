"""The sketch of the calibration frames that a bundle keeps, so that an app can see when the field differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import monotonic

import numpy as np

from edgeopt.errors import Note, NoteKind
from edgeopt.executors import Session
from edgeopt.graph.tensors import Sample
from edgeopt.measurement.accuracy.evaluate import model_inputs
from edgeopt.optimization.run import Run
from edgeopt.recipes.inputs.frames import Frames
from edgeopt.runtime.drift.figures import Figures, of_answer, reader_of
from edgeopt.runtime.drift.sketch import LEAST_FRAMES, Sketch, sketch_of
from edgeopt.tasks import FrameTask

_MOST_FRAMES = 128
_MOST_S = 3.0
"""For reading and running the frames."""
_SEED = 0


def has_frames_for_sketch(run: Run) -> bool:
    """Return whether enough calibration frames were passed that show what is usual."""
    return not run.plan.synthetic and len(run.context.frames) >= LEAST_FRAMES


def sketch_frames(
    run: Run, session: Session, task: FrameTask, artefact: str, held: Mapping[str, tuple[float, float]]
) -> Sketch | Note:
    """Return the figures of calibration frames and of a model's answers to them; a note that says why there are none.

    Args:
        run: With its frames.
        session: The model as it is deployed.
        task: Bound to it, with the thresholds of an app.
        artefact: File of the model in the bundle.
        held: What its quantizers hold, by input and output.

    Raises:
        EdgeoptError: If the engine fails.
    """
    recipe, frames = run.context.recipe, run.context.frames.spread(_MOST_FRAMES)
    states = recipe.input.states
    specs = [spec for spec in session.inputs if spec.name not in states]
    reader, looks = None, list[tuple[Figures, list[int]]]()
    until_s = min(monotonic() + _MOST_S, max(run.context.ends_at, monotonic()))
    for sample in _samples(run, frames):
        inputs, geometry = task.preprocess(sample)
        reader = reader or reader_of(specs, inputs, recipe.input.tensor, held)
        figures = reader.of_inputs(inputs)
        outputs = session.run(inputs)
        figures |= reader.of_outputs(outputs)
        answer = task.postprocess(outputs, geometry)
        looks.append((figures | of_answer(task, answer), list(task.classes_in(answer))))
        if monotonic() > until_s:
            break
    sketch = sketch_of(artefact, "calibration", reader, looks) if reader else None
    if sketch is None:
        text = f"drift cannot be watched: there was time for {len(looks)} of the {LEAST_FRAMES} frames that are needed"
        return Note(NoteKind.SKIPPED, text)
    return sketch


def _samples(run: Run, frames: Frames) -> Iterator[Sample]:
    """Yield frames in an order that says nothing: time may end before the last."""
    if frames.kind == "sound":  # as they stream, with the states that occur
        yield from model_inputs(run.context.task(run.context.original, evaluating=False), frames)
        return
    for place in np.random.default_rng(_SEED).permutation(len(frames)):
        yield frames.read(int(place))
