"""A recipe of sounds for a model of any making: what names and shapes tell is read, the rest is asked or guessed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.graph.tensors import TensorSpec
from edgeopt.recipes.binding import ARRAYS_RECIPE, is_rate
from edgeopt.recipes.drafting.drafted import Draft, Facts
from edgeopt.recipes.drafting.questions import Ask, RecipeQuestion, about_labels, about_recipe
from edgeopt.recipes.drafting.state_drafting import draft_states
from edgeopt.recipes.drafting.text_drafting import NOT_KNOWN
from edgeopt.recipes.inputs.audio import Audio, Features
from edgeopt.recipes.inputs.features import FeatureMaker
from edgeopt.recipes.metadata import class_names_of
from edgeopt.recipes.outputs.output_shapes import SPREADING, count_classes, why_unfit
from edgeopt.recipes.recipe import Evaluation, Postprocess, Recipe, find_recipe
from edgeopt.system.text import short

_BANDS = frozenset(
    ["mel", "mels", "melspec", "melspectrogram", "logmel", "spectrogram", "spectrograms", "fbank", "mfcc", "features"]
)
_SOUND = frozenset(["audio", "audios", "wav", "wave", "waveform", "waveforms", "sound", "speech", "pcm"])
"""Words in the name of an input that hears: bands, or either."""
_USUAL_BANDS = (80, 128, 64, 40)
_MOST_BANDS = 256
"""Most bands of one frame: a larger size holds several frames beside each other, which no recipe makes."""
_MFCC = (Features.TORCHAUDIO_MFCC, Features.LIBROSA_MFCC)
_MOST_SAMPLES = 2**26

Sizes = tuple[int | str | None, ...]


def sound_draft(facts: Facts, ask: Ask) -> Draft | None:
    """Return a recipe of sounds, bound to the model; None where nothing says that it hears.

    Args:
        facts: Of the model; an example that is a sound says that it hears, as names like `mel` and `audio` do.
        ask: Answers what the model does not tell.
    """
    certain = [spec for spec in facts.inputs if _hears_by_name(spec)]
    if not (certain or facts.sound_rate_hz):
        return None
    states, comments = draft_states(facts.inputs, facts.outputs, ask)
    left = [spec for spec in facts.inputs if spec.name not in states and not is_rate(spec)]
    if len(left) != 1 or "float" not in left[0].dtype or not _sizes(left[0]):
        return None
    if not (facts.sound_rate_hz or _hears_by_name(left[0])):
        return None
    return _SoundDrafting(facts, ask, left[0], states, comments).draft()


def _sizes(spec: TensorSpec) -> Sizes:
    """Return the sizes behind a batch that are not 1: samples, or bands and frames; none where it is neither."""
    sizes = tuple(size for size in (spec.shape[1:] or spec.shape) if size != 1)
    least = min((size for size in sizes if isinstance(size, int)), default=0)
    return sizes if len(sizes) == 1 or (len(sizes) == 2 and least <= _MOST_BANDS) else ()


def _hears_by_name(spec: TensorSpec) -> bool:
    words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", spec.name).lower()))
    if not words.isdisjoint(_BANDS):
        return len(_sizes(spec)) == 2
    return not words.isdisjoint(_SOUND) and bool(_sizes(spec))


class _SoundDrafting:
    """One draft on its way."""

    def __init__(
        self, facts: Facts, ask: Ask, heard: TensorSpec, states: dict[str, str], comments: dict[str, str]
    ) -> None:
        self._facts, self._ask, self._heard, self._states = facts, ask, heard, states
        self._comments = comments

    def draft(self) -> Draft:
        """Return it."""
        facts, likely = self._facts, self._facts.sound_rate_hz or next(iter(RATES_HZ))
        why = "that of the example" if facts.sound_rate_hz else "samples a second of the sounds it learned from"
        rate = int(self._tell("audio.rate_hz", about_rate(likely), why))
        sizes = _sizes(self._heard)
        audio = self._waveform(sizes[0], rate) if len(sizes) == 1 else self._bands(sizes, rate)
        recipe = self._answering(replace(find_recipe(ARRAYS_RECIPE), match=(), audio=audio))
        recipe = replace(recipe, name=facts.name, source=facts.path.name)
        recipe = replace(recipe, input=replace(recipe.input, tensor=self._heard.name, states=self._states))
        self._comments["input.tensor"] = f"from the model: {self._heard}"
        bound = facts.bound(recipe)
        return Draft(bound, self._comments)

    def _tell(self, key: str, question: RecipeQuestion, why: str) -> Any:
        answer = self._ask(question)
        self._comments[key] = f"{NOT_KNOWN}{why}" if answer is None else "as answered"
        return question.default if answer is None else answer

    def _waveform(self, size: int | str | None, rate_hz: int) -> Audio:
        self._comments["audio.features"] = "from the model: one row of samples"
        if not isinstance(size, int):
            samples = self._length(rate_hz)
            return Audio(rate_hz=rate_hz, samples=samples, hop=samples if self._states else 0)
        question = about_new_samples(size, streams=bool(self._states))
        new = int(self._tell("audio.hop", question, f"new samples of the {size} of a run; 0: a sound is one window"))
        self._comments["audio.samples"] = f"from the model: {size} a run"
        return Audio(rate_hz=rate_hz, samples=new or size, hop=new, context=size - new if new else 0)

    def _length(self, rate_hz: int) -> int:
        question = about_length(self._heard.name, rate_hz)
        return int(self._tell("audio.samples", question, "of one run; the model takes any"))

    def _bands(self, sizes: Sizes, rate_hz: int) -> Audio:
        known = sorted((one for one in sizes if isinstance(one, int)), key=lambda one: (one not in _USUAL_BANDS, one))
        likely = Features.TORCHAUDIO_MFCC if "mfcc" in self._heard.name.lower() else Features.TORCHAUDIO
        kind = self._tell("audio.features", about_features(likely), "by whose convention its bands are made")
        key = "audio.coefficients" if kind in _MFCC else "audio.bands"
        if len(known) == 1:
            bands = known[0]
            self._comments[key] = "from the model"
        else:
            bands = self._tell(key, about_bands(self._heard.name, known), "which of its sizes are bands")
        others = [size for size in sizes if size != bands]
        frames = others[0] if others else bands
        audio = Audio(rate_hz=rate_hz, features=kind, samples=_MOST_SAMPLES)
        audio = replace(audio, coefficients=bands) if kind in _MFCC else replace(audio, bands=bands)
        if kind is not Features.WHISPER:
            window, step = self._tell("audio.step", about_frames(rate_hz), "samples from frame to frame, and of each")
            audio = replace(audio, step=step, frame=window, fft=0 if kind is Features.KALDI else window)
            text = "as answered" if self._comments["audio.step"] == "as answered" else f"{NOT_KNOWN}as step"
            self._comments["audio.frame"] = text
        if isinstance(frames, int):
            self._comments["audio.samples"] = f"as few as make {frames} frames"
            audio = replace(audio, samples=_samples_of(audio, frames))
        else:
            audio = replace(audio, samples=self._length(rate_hz))
        self._comments["audio.mean"] = f"{NOT_KNOWN}features become (feature - mean) / std"
        self._comments["audio.std"] = f"{NOT_KNOWN}as mean"
        return audio

    def _answering(self, recipe: Recipe) -> Recipe:
        """Return the recipe with what its outputs are: classes, whether somebody speaks, or numbers as they are."""
        said = [output for output in self._facts.outputs if output.name not in self._states.values()]
        shown = ", ".join(map(str, said))
        kinds = [*self._kinds(recipe, said), replace(recipe, name="tensors", description="the outputs as they are")]
        if len(kinds) == 1:
            self._comments["task"] = f"no task reads these outputs of a sound: {shown}"
            return kinds[0]
        result: Recipe = self._tell("task", about_recipe(kinds), f"outputs are {shown}")
        if result.task == "classification":
            result = self._labelled(result, said)
        return result

    def _kinds(self, recipe: Recipe, said: Sequence[TensorSpec]) -> list[Recipe]:
        """Return the readings of one output, the likeliest first."""
        if len(said) != 1 or "float" not in said[0].dtype:
            return []
        (output,), kinds = said, list[Recipe]()
        decoder = "probabilities" if output.op in SPREADING[:1] else "logits"
        classes = replace(
            recipe,
            name="classification",
            task="classification",
            description="one score a class",
            postprocess=Postprocess(decoder),
            evaluation=Evaluation("top1"),
        )
        if not why_unfit(classes, said):
            kinds.append(classes)
        if output.op == "Sigmoid" or not kinds:
            decoder = "probability" if output.op == "Sigmoid" else "logit"
            activity = replace(
                recipe,
                name="voice_activity",
                task="voice_activity",
                description="how probable speech, or another sound, is",
                postprocess=Postprocess(decoder, score_threshold=0.5),
                evaluation=Evaluation("f1"),
            )
            if len([size for size in output.shape[1:] if size != 1]) < 2:
                kinds.insert(0, activity)
        return kinds

    def _labelled(self, recipe: Recipe, said: Sequence[TensorSpec]) -> Recipe:
        self._comments["postprocess.decoder"] = f"the graph ends in {said[0].op or 'an unknown op'}"
        if class_names_of(self._facts.metadata):
            self._comments["labels"] = "from the metadata"
            return recipe
        why = 'names of the classes; write labels = "labels.txt", one name a line'
        names = self._tell("labels", about_labels(count_classes(recipe, said)), why)
        return replace(recipe, class_names=tuple(names))


def _samples_of(audio: Audio, frames: int) -> int:
    """Return the least samples of which a convention makes so many frames."""
    low, high = 1, _MOST_SAMPLES
    while low < high:
        middle = (low + high) // 2
        if _frames_of(audio, middle) >= frames:
            high = middle
        else:
            low = middle + 1
    return low


def _frames_of(audio: Audio, samples: int) -> int:
    try:
        return FeatureMaker(replace(audio, samples=samples)).shape[1]
    except ValueError:  # shorter than a frame
        return 0


# Questions about a model that hears, which it does not answer itself, with the answers that are likely.

RATES_HZ: Mapping[int, str] = {
    16000: "most models of speech",
    8000: "telephones, small keyword nets",
    48000: "noise suppression, effects",
    44100: "music",
    32000: "tagging of sounds (PANNs)",
    22050: "librosa's own",
}
_MOST_HZ, _MOST_FRAME = 384_000, 2**16
_CONVENTIONS = {
    Features.TORCHAUDIO: "torchaudio.transforms.MelSpectrogram, its logarithm",
    Features.LIBROSA: "librosa.feature.melspectrogram, in decibels",
    Features.KALDI: "kaldi's fbank",
    Features.WHISPER: "Whisper's log-mel",
    Features.TORCHAUDIO_MFCC: "torchaudio.transforms.MFCC",
    Features.LIBROSA_MFCC: "librosa.feature.mfcc",
}
_FRAMES_MS = ((25, 10), (32, 16), (32, 8), (64, 32))
"""Milliseconds under the window function, and from frame to frame."""


def about_rate(likely: int) -> RecipeQuestion:
    """Return the question for samples a second."""
    rates = dict.fromkeys((likely, *RATES_HZ))
    options = {f"{rate}: {RATES_HZ.get(rate, 'that of the example')}": rate for rate in rates}
    return RecipeQuestion(
        "Of how many samples a second are its sounds?", options, "a whole number", _whole(1, _MOST_HZ)
    )


def about_features(likely: Features) -> RecipeQuestion:
    """Return the question for the convention of bands."""
    kinds = dict.fromkeys((likely, *_CONVENTIONS))
    return RecipeQuestion("What makes its bands of a sound?", {f"{kind}: {_CONVENTIONS[kind]}": kind for kind in kinds})


def about_bands(name: str, sizes: Sequence[int]) -> RecipeQuestion:
    """Return the question for which size of an input counts bands; the first is likely."""
    text = f"How many bands, or coefficients, does input {name} take? Its other size counts frames."
    return RecipeQuestion(text, {str(size): size for size in sizes} or {"80": 80}, "a whole number", _whole(1, 512))


def about_frames(rate_hz: int) -> RecipeQuestion:
    """Return the question for the samples of a frame, and from frame to frame."""
    options = {}
    for window_ms, step_ms in _FRAMES_MS:
        window, step = window_ms * rate_hz // 1000, step_ms * rate_hz // 1000
        options[f"{window} {step}: {window_ms} ms every {step_ms} ms"] = (window, step)

    def read(text: str) -> tuple[int, int]:
        numbers = [_whole(1, _MOST_FRAME)(part) for part in text.split()]
        if len(numbers) != 2:
            raise EdgeoptError(f"{short(text)} is no answer", remedy="type two whole numbers, such as 400 160")
        return numbers[0], numbers[1]

    return RecipeQuestion(
        "How many samples has a frame, and how many lie from frame to frame?", options, "WINDOW HOP", read
    )


def about_length(name: str, rate_hz: int) -> RecipeQuestion:
    """Return the question for the samples of a window, where an input takes any."""
    options = {f"{part * rate_hz // 10}: {part / 10:g} s": part * rate_hz // 10 for part in (10, 5, 20, 50, 100)}
    text = f"How many samples of sound are one run? Input {name} takes any."
    return RecipeQuestion(text, options, "a whole number", _whole(1, _MOST_SAMPLES))


def about_new_samples(size: int, *, streams: bool) -> RecipeQuestion:
    """Return the question for how many samples of a window are new; 0: a sound is one window."""
    options = {f"{size}: windows follow one another": size, "0: a sound is one window, cut or padded": 0}
    if not streams:
        options = dict(reversed(options.items()))
    text = f"How many of the {size} samples of a run are new in each window?"
    return RecipeQuestion(text, options, "fewer: the others are heard again", _whole(2, size))


def _whole(least: int, most: int) -> Callable[[str], Any]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most):
            raise EdgeoptError(f"{short(text)} is no answer", remedy=f"type a whole number from {least} to {most}")
        return int(text)

    return read
