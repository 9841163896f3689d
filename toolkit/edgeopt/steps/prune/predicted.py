"""The times by which a model is pruned for a device that is not here, as its own measured times predict them."""

from __future__ import annotations

from edgeopt.errors import Note, NoteKind
from edgeopt.steps._device_times.prediction import Predictor
from edgeopt.steps.prune.latency_table import Stopwatch
from edgeopt.steps.prune.network.channel_step import ChannelStep
from edgeopt.system.declared.target import Target


def predicted_stopwatch(predictor: Predictor) -> Stopwatch:
    """Return what tells layers' times as predicted, in milliseconds."""
    return lambda shapes: [predictor.layer_ms(shape) for shape in shapes]


def predicted_step(predictor: Predictor, target: Target) -> ChannelStep:
    """Return the channel step that was measured on a target's device."""
    step = predictor.channel_step
    said = f"channels are kept in multiples of {step}: counts between save no time on {target.machine}"
    return ChannelStep(step, Note(NoteKind.INFO, said, "as its times say"))
