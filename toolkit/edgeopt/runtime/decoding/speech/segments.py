"""Segments of what is heard: the tokens of a window, cut at its pairs of times.

Source: Radford et al., 2022, arXiv:2212.04356, section 3.8; `_retrieve_segment` of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from edgeopt.runtime.decoding.speech.words import STEP_S, SpeechWord


@dataclass(frozen=True, slots=True)
class SpeechSegment:
    """A part of a sound with the text that is spoken in it."""

    start_s: float
    """Beginning of the segment, in seconds of the sound."""
    end_s: float
    """End of the segment, in seconds of the sound."""
    text: str
    """Text of the segment, often with a space before it."""
    tokens: tuple[int, ...]
    """Tokens of the text and of its times."""
    avg_logprob: float
    """Mean logarithm of the probabilities of its window's tokens."""
    no_speech_prob: float | None
    """Probability that its window is silent; None: the model does not give it."""
    temperature: float
    """Temperature at which its window's tokens were drawn; 0: the likeliest tokens."""
    window_s: float
    """Beginning of its window, in seconds of the sound."""
    words: tuple[SpeechWord, ...] = ()
    """Its words with their times; empty unless they were asked for."""

    def as_json(self) -> dict[str, Any]:
        """Return the segment as plain values."""
        values: dict[str, Any] = {
            "start_s": round(self.start_s, 3),
            "end_s": round(self.end_s, 3),
            "text": self.text.strip(),
            "tokens": list(self.tokens),
            "avg_logprob": self.avg_logprob if isfinite(self.avg_logprob) else None,
            "no_speech_prob": self.no_speech_prob,
            "temperature": self.temperature,
        }
        return values | ({"words": [word.as_json() for word in self.words]} if self.words else {})


@dataclass(frozen=True, slots=True)
class CutTokens:
    """Tokens of a window between two times."""

    start_s: float
    end_s: float
    tokens: tuple[int, ...]


def cut_at_times(tokens: Sequence[int], first_time: int | None, heard_s: float) -> tuple[list[CutTokens], float]:
    """Return the segments of a window, in seconds from its beginning, and how far it was heard.

    Args:
        tokens: Of its answer, without the end.
        first_time: The token of the time 0; None: no times are written, and all is one segment.
        heard_s: How much sound the window holds.
    """
    first = first_time if first_time is not None else max(tokens, default=0) + 1
    are_times = [token >= first for token in tokens]
    is_single_ending = are_times[-2:] == [False, True]
    cuts = [i + 1 for i in range(len(tokens) - 1) if are_times[i] and are_times[i + 1]]
    if not cuts:
        last = next((token for token in reversed(tokens) if token >= first), None)
        end_s = heard_s if last is None or last == first else (last - first) * STEP_S
        return [CutTokens(0.0, end_s, tuple(tokens))], heard_s
    if is_single_ending:  # nobody speaks behind the last time
        cuts.append(len(tokens))
    else:  # the second time of the last pair tells that the segment ended in the middle of the window
        cuts[-1] += 1
    parts, begin = list[CutTokens](), 0
    for place in cuts:
        part = tuple(tokens[begin:place])
        last_place = -2 if place == cuts[-1] and not is_single_ending else -1
        parts.append(CutTokens((part[0] - first) * STEP_S, (part[last_place] - first) * STEP_S, part))
        begin = place
    return parts, heard_s if is_single_ending else (tokens[begin - 2] - first) * STEP_S
