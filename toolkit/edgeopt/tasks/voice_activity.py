"""Voice activity: in which stretches of a sound somebody speaks. Window to tensor, one probability for each stretch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import InvalidFileError, NotFoundError, UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.graph.tensors import Frame, Sample, Tensors, TensorSpec
from edgeopt.recipes.drawings import HEIGHT
from edgeopt.recipes.drawings.sample_drawing import draw_stretches_of_sound
from edgeopt.recipes.inputs.sound_input import SoundInput
from edgeopt.recipes.labels import Labels
from edgeopt.recipes.labels.intervals import IntervalLabels
from edgeopt.recipes.metrics import find_metric
from edgeopt.recipes.recipe import Recipe
from edgeopt.recipes.scoring.sound_spans import SoundSpans
from edgeopt.tasks import Accuracy, FrameTask, accuracy_of, resampled_accuracy
from edgeopt.tasks._json_numbers import score_as_json
from edgeopt.tasks._likeness import OutputKind, compare_output
from edgeopt.tasks._losses import relative_error

_DECODERS = ("probability", "logit")
_MOST_TOLD = 4
_LEAST_SHARE = 1e-6
"""A smaller probability of what is true counts as this one: no answer outweighs all others."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Probability of speech in each stretch of one window."""

    probabilities: NDArray[np.float32]
    """(stretches,): probability of speech in stretches of equal length; NaN if the output holds NaN."""
    threshold: float
    """Probability from which a stretch counts as speech."""

    @property
    def is_speech(self) -> NDArray[np.bool_]:
        """(stretches,): whether the probability is above the threshold."""
        array: NDArray[np.bool_] = self.probabilities >= self.threshold
        return array


class VoiceActivity(FrameTask):
    """One detector of speech, or of any other sound that is there or not."""

    draws: ClassVar[Sequence[str]] = ("sound",)

    def __init__(self, recipe: Recipe, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], evaluating: bool):
        """Bind a recipe to a model's tensors.

        Raises:
            NotFoundError: If the recipe's decoder does not exist.
            UnsupportedError: If it takes no sounds, or the model has no output of probabilities.
        """
        if recipe.postprocess.decoder not in _DECODERS:
            raise NotFoundError("decoder of task voice_activity", recipe.postprocess.decoder, _DECODERS)
        if recipe.kind != "sound":
            raise UnsupportedError(
                f"recipe {recipe.name!r} takes no sounds", remedy="write rate_hz = 16000, or the model's, under [audio]"
            )
        states = set(recipe.input.states.values())
        specs = [
            output for output in outputs if output.name not in states and "float" in output.dtype and _is_row(output)
        ]
        if not specs:
            raise UnsupportedError(
                f"recipe {recipe.name!r} does not fit this model: none of its outputs is a row of probabilities: "
                f"{', '.join(map(str, outputs))}",
                remedy='write task = "tensors" in the recipe',
            )
        self._output, self._is_logit = specs[0].name, recipe.postprocess.decoder == "logit"
        self._recipe, self._threshold = recipe, recipe.postprocess.score_threshold
        self._sound = SoundInput(recipe, inputs)

    def preprocess(self, frame: Sample) -> tuple[Tensors, None]:
        """Return the inputs; arrays stay unchanged."""
        return (frame if isinstance(frame, Mapping) else self._sound(frame)), None

    def postprocess(self, outputs: Tensors, geometry: Any = None) -> Activity:
        """Return the probabilities; logits become such by a sigmoid."""
        del geometry
        array = np.array(outputs[self._output], np.float32).reshape(-1)
        if self._is_logit:
            array = np.asarray(1 / (1 + np.exp(-np.clip(array, -80, 80))), np.float32)
        return Activity(array, self._threshold)

    def count(self, answer: Activity) -> int:
        """Return how many stretches have a probability; 0 where the output holds NaN."""
        return len(answer.probabilities) if np.isfinite(answer.probabilities).all() else 0

    def best_score(self, answer: Activity) -> float:
        """Return the highest probability of speech; 0 where the output holds NaN."""
        return float(answer.probabilities.max()) if self.count(answer) else 0.0

    def as_text(self, answer: Activity) -> str:
        """Return whether somebody speaks, and how probable that is."""
        text = ", ".join(f"{value:.3f}" for value in answer.probabilities[:_MOST_TOLD].tolist())
        more = ", ..." if len(answer.probabilities) > _MOST_TOLD else ""
        return f"{'speech' if answer.is_speech.any() else 'no speech'} {text}{more}"

    def as_json(self, answer: Activity) -> dict[str, Any]:
        """Return `speech`, whether it is there, and `probabilities` in their order; None where not finite."""
        values = [score_as_json(value) if np.isfinite(value) else None for value in answer.probabilities.tolist()]
        return {"speech": bool(answer.is_speech.any()), "probabilities": values}

    def draw(self, frame: Any, answer: Activity, height: int = HEIGHT) -> Frame:
        """Return a picture of the sound over the probability of each stretch.

        Raises:
            UnsupportedError: If arrays were fed.
        """
        if not isinstance(frame, Sound):
            raise UnsupportedError("arrays have no picture", remedy="leave --save and --view out, or pass sounds")
        return draw_stretches_of_sound(frame, answer.probabilities, answer.threshold, "speech", height)

    def joined(self, frames: Sequence[Sound], answers: Sequence[Activity]) -> tuple[Sound, Activity]:
        """Return the windows of one sound as one, and their answers; context and overlap are taken once."""
        audio = self._recipe.audio
        new = [frame.samples[audio.context :][: audio.hop or None] for frame in frames]
        array = np.concatenate([answer.probabilities for answer in answers])
        return Sound(np.concatenate(new), frames[0].rate_hz), Activity(array, self._threshold)

    def score(self, answers: Sequence[Activity], labels: Labels) -> Accuracy:
        """Return the recipe's metric, the others beside it.

        Raises:
            InvalidFileError: If the labels are no intervals.
        """
        return accuracy_of(self._stretches(answers, labels), self._recipe, len(answers))

    def score_resamples(
        self, answers: Sequence[Activity], labels: Labels, counts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return (resamples,) the metric where the i-th window counts `counts[:, i]` times."""
        return resampled_accuracy(self._stretches(answers, labels), self._recipe, counts)

    def _stretches(self, answers: Sequence[Activity], labels: Labels) -> SoundSpans:
        if not isinstance(labels, IntervalLabels):
            raise InvalidFileError(f"{labels.source} holds no intervals", remedy="pass a CSV of file,start_s,end_s")
        array = np.stack([answer.probabilities for answer in answers]).astype(np.float64)
        return SoundSpans(array, labels.truth(array.shape[1]), self._threshold)

    def agreement(self, answers: Sequence[Activity], reference: Sequence[Activity]) -> float:
        """Return the decisions at one half that are the same, of those that are not the most common one.

        Less where the probabilities differ more than that; see docs/recipes-tensors.md.
        """
        if not reference:
            return 1.0
        arrays, expected = ([activity.probabilities for activity in both] for both in (answers, reference))
        shares = compare_output(expected, arrays, OutputKind.PROBABILITY)
        return find_metric("agreement").score(np.stack(shares), len(reference))

    def loss(self, outputs: Sequence[Tensors], reference: Sequence[Tensors]) -> float:
        """Return the relative error of the probabilities, squared."""
        name = self._output
        return relative_error([{name: one[name]} for one in outputs], [{name: one[name]} for one in reference])

    def sureness(self, answers: Sequence[Activity]) -> NDArray[np.float64]:
        """Return (answers,) how far each is from one half."""
        return np.array([float(np.abs(2 * answer.probabilities - 1).mean()) for answer in answers])

    def rightness(self, answers: Sequence[Activity], labels: Labels) -> NDArray[np.float64]:
        """Return (answers,) the logarithm of the probability of what is true: 1 where it is sure, 0 at the least.

        Source: the logarithmic score, Good 1952.
        """
        stretches = self._stretches(answers, labels)
        true = np.where(stretches.is_true, stretches.probabilities, 1 - stretches.probabilities)
        shares = np.log(np.clip(np.nan_to_num(true), _LEAST_SHARE, 1.0)) / np.log(_LEAST_SHARE)
        return np.asarray(1 - shares.mean(axis=1), np.float64)


def _is_row(spec: TensorSpec) -> bool:
    """Return whether an output has one axis at most that is longer than 1."""
    return len([size for size in spec.shape if isinstance(size, int) and size > 1]) <= 1


TASK = VoiceActivity
