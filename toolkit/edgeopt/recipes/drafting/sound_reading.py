"""Recipes of models that hear, where names and shapes make them certain: Silero's VAD and Whisper's encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edgeopt.graph.facts.states import find_states
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import ARRAYS_RECIPE
from edgeopt.recipes.drafting.text_drafting import NOT_KNOWN
from edgeopt.recipes.inputs.audio import Audio, Features
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe, find_recipe

_RATE_HZ, _STEP = 16000, 160
_WINDOW, _CONTEXT = 512, 64
_SILERO: dict[tuple[int | str | None, int | str | None], int] = {(2, 128): _CONTEXT, (1, 128): _CONTEXT, (2, 64): 0}
"""First and last size of a state, to the samples that are heard again: versions 5 and 6, as one sequence, version 4."""
_BANDS = (80, 128)


def sound_recipe(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[Recipe, dict[str, str]] | None:
    """Return a recipe of sounds that is not bound yet, and comments of its keys; None where nothing is certain.

    Args:
        inputs: Of the model.
        outputs: Of the model.
    """
    features = next((spec for spec in inputs if spec.name == "input_features" and _bands(spec)), None)
    if features is not None and len(inputs) == 1:
        bands, frames = features.shape[1], features.shape[2]
        assert isinstance(bands, int)
        assert isinstance(frames, int)
        heard = Audio(rate_hz=_RATE_HZ, features=Features.WHISPER, samples=frames * _STEP, bands=bands)
        values = {"audio.features": f"the model takes {features}", "audio.samples": f"{frames} frames of {_STEP}"}
        values["audio.normalise"] = f"{NOT_KNOWN}some bring the samples to deviation 1 before, as do_normalize asks for"
        told_of = "Sounds as features in, outputs as they are"
        return replace(_arrays(), name="whisper_features", description=told_of, audio=heard), values
    states = find_states(inputs, outputs)
    kinds = {(spec.shape[0], spec.shape[-1]) for spec in inputs if spec.name in states and len(spec.shape) == 3}
    said = [output for output in outputs if output.name not in states.values()]
    heard_by = [spec for spec in inputs if spec.name == "input" and len(spec.shape) == 2]
    beside = {spec.name for spec in inputs} - {"input", "sr", *states}
    context = _SILERO.get(next(iter(kinds), (0, 0)))
    if len(kinds) != 1 or context is None or len(said) != 1 or not heard_by or beside:
        return None
    size = heard_by[0].shape[1]
    if isinstance(size, int) and size != _WINDOW + context:
        return None
    recipe = replace(
        _arrays(),
        name="silero_vad",
        task="voice_activity",
        description="Whether somebody speaks, 32 ms at a time",
        audio=Audio(rate_hz=_RATE_HZ, samples=_WINDOW, context=context, hop=_WINDOW),
        postprocess=Postprocess("probability", score_threshold=0.5),
        evaluation=Evaluation("f1"),
    )
    values = {
        "task": f"Silero's detector of speech, by its inputs and states: {', '.join(map(str, inputs))}",
        "audio.rate_hz": "as usual; 8000 with samples = 256, context = 32 where the model takes that too",
        "postprocess.score_threshold": "as usual",
    }
    return recipe, values


def _arrays() -> Recipe:
    return replace(find_recipe(ARRAYS_RECIPE), match=())


def _bands(spec: TensorSpec) -> bool:
    return len(spec.shape) == 3 and spec.shape[1] in _BANDS and isinstance(spec.shape[2], int) and spec.shape[2] > 1
