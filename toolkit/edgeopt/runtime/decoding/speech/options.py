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
    """Text that was said before, or words as they are to be spelled."""
    times: bool | None = None
    """Whether the model writes times, of which segments are made. None: where the sound is longer than a window, or the
    configuration asks; else a sound is one segment."""
    beams: int = 0
    """Answers that are kept beside each other while the likeliest is searched for; 0: as configured, else 1."""
    temperatures: tuple[float, ...] = ()
    """Tried in turn while an answer is doubted; above 0 tokens are drawn. Empty: 0, and where there are thresholds of
    doubt 0 to 1 in fifths."""
    compression_ratio_threshold: float | None = None
    """Tokens that compress better than this repeat themselves, and are doubted; None: as configured."""
    logprob_threshold: float | None = None
    """A mean logarithm of probabilities below this is doubted; None: as configured."""
    no_speech_threshold: float | None = None
    """A probability of silence above this leaves a window out whose logarithms are doubted too; None: as configured."""
    carries_text: bool | None = None
    """Whether each window is told what was said before; None: as configured."""
    window_tokens: int = 0
    """Tokens that the answer to each window may have; 0: what the model's context holds."""
    seed: int = 0
    """Seed of what is drawn."""

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
        """Return the same with other fields.

        Raises:
            TypeError: If there is no such field.
            ValueError: If a value is none.
        """
        return replace(self, **wishes) if wishes else self
