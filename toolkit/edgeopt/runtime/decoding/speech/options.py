"""Options of a transcription."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from edgeopt.recipes.texts.beams import MOST_BEAMS
from edgeopt.recipes.texts.speech import TRANSCRIBE, TRANSLATE

_MOST_TEMPERATURE = 2.0


class SpeechWishes(TypedDict, total=False):
    """Keyword options of `transcribe`; `SpeechOptions` says what each means, and its default."""

    language: str
    task: str
    prompt: str
    times: bool | None
    words: bool
    beams: int
    temperatures: tuple[float, ...]
    compression_ratio_threshold: float | None
    logprob_threshold: float | None
    no_speech_threshold: float | None
    carries_text: bool | None
    window_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """Options of a transcription."""

    language: str = ""
    """Language that is spoken: its code, English name or token; empty: as configured, else the model chooses it."""
    task: str = ""
    """`transcribe`, or `translate` into English; empty: as configured, else the first."""
    prompt: str = ""
    """Text that was said before, or words in the spelling you want."""
    times: bool | None = None
    """Whether the model writes times, from which segments are made; without them the sound is one segment. None: if the
    sound is longer than a window, or if the configuration asks for times."""
    words: bool = False
    """Whether segments tell when each of their words is said."""
    beams: int = 0
    """Width of the beam search; 0: as configured, else 1."""
    temperatures: tuple[float, ...] = ()
    """Temperatures that are tried in turn while the text fails a threshold; above 0, tokens are drawn. Empty: 0, or
    with thresholds 0 to 1 in steps of 0.2."""
    compression_ratio_threshold: float | None = None
    """A text whose tokens compress better than this repeats itself, and is tried again; None: as configured."""
    logprob_threshold: float | None = None
    """A text whose mean logarithm of probabilities is below this is tried again; None: as configured."""
    no_speech_threshold: float | None = None
    """A window that fails `logprob_threshold` is skipped if its probability of silence is above this; None: as
    configured."""
    carries_text: bool | None = None
    """Whether each window also reads the text before it; None: as configured."""
    window_tokens: int = 0
    """Most tokens for each window; 0: as many as the model's context holds."""
    seed: int = 0
    """Seed of the random numbers."""

    def __post_init__(self) -> None:
        if self.task not in ("", TRANSCRIBE, TRANSLATE):
            raise ValueError(f"task is {self.task!r}, not {TRANSCRIBE} or {TRANSLATE}")
        for name, least, most in (("beams", 0, MOST_BEAMS), ("window_tokens", 0, 1 << 30), ("seed", 0, 1 << 62)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(f"{name} is {value!r}, and must be a whole number from {least} to {most}")
        if not all(0 <= value <= _MOST_TEMPERATURE for value in self.temperatures):
            raise ValueError(f"temperatures are {self.temperatures}, not 0 to {_MOST_TEMPERATURE:g}")

    def but(self, **wishes: Unpack[SpeechWishes]) -> SpeechOptions:
        """Return a copy with other values.

        Raises:
            TypeError: If there is no such field.
            ValueError: If a value is wrong.
        """
        return replace(self, **wishes) if wishes else self
