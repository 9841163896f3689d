"""Transcriptions in the forms of OpenAI's interface.

Source: OpenAI API reference, the objects `Transcription`, `TranscriptionVerbose`, `transcript.text.delta` and
`transcript.text.done`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from edgeopt.recipes.texts.languages import LANGUAGES
from edgeopt.recipes.texts.speech import TRANSCRIBE, TRANSLATE
from edgeopt.runtime.decoding.speech.segments import SpeechSegment
from edgeopt.runtime.decoding.speech.subtitles import as_srt, as_vtt
from edgeopt.runtime.decoding.speech.words import SpeechWord
from edgeopt.runtime.serve.replies import event
from edgeopt.runtime.serve.routes.speech_request import SRT, TEXT, VERBOSE, VTT, SpeechRequest

_FRAMES_A_SECOND = 100
"""`seek` counts frames of Whisper's features."""
_LEAST_LOGPROB = -9999.0
"""Logarithm in place of minus infinity, which JSON has not."""


@dataclass(frozen=True, slots=True)
class HeardSpeech:
    """All that is said in a sound."""

    segments: Sequence[SpeechSegment]
    language: str
    """Its code; empty where none is told."""
    seconds: float
    """How long the sound is."""
    figures: Mapping[str, Any]
    """Times that the server measured."""

    @property
    def text(self) -> str:
        """The text of all segments."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def usage(self) -> dict[str, Any]:
        """Seconds that are counted."""
        return {"type": "duration", "seconds": ceil(self.seconds)}


def reply_of(heard: HeardSpeech, request: SpeechRequest, headers: Mapping[str, str]) -> Response:
    """Return the reply in the form that was asked for."""
    if request.form == TEXT:
        return PlainTextResponse(f"{heard.text}\n", headers=dict(headers))
    if request.form == SRT:
        return PlainTextResponse(as_srt(heard.segments), headers=dict(headers), media_type="application/x-subrip")
    if request.form == VTT:
        return PlainTextResponse(as_vtt(heard.segments), headers=dict(headers), media_type="text/vtt")
    values: dict[str, Any] = {"text": heard.text}
    if request.form == VERBOSE:
        values |= {
            "task": TRANSLATE if request.translates else TRANSCRIBE,
            "language": LANGUAGES.get(heard.language, heard.language),
            "duration": heard.seconds,
        }
        if request.tells_segments:
            values["segments"] = [_segment(number, each) for number, each in enumerate(heard.segments)]
        if request.options.words:
            values["words"] = [_word(word) for segment in heard.segments for word in segment.words]
    return JSONResponse(values | {"usage": heard.usage, "edgeopt": heard.figures}, headers=dict(headers))


def delta(segment: SpeechSegment) -> bytes:
    """Return the event of one segment of a stream."""
    return event({"type": "transcript.text.delta", "delta": segment.text})


def done(heard: HeardSpeech) -> bytes:
    """Return the event that ends a stream, with all that was said."""
    return event(
        {"type": "transcript.text.done", "text": heard.text, "usage": heard.usage, "edgeopt": dict(heard.figures)}
    )


def _word(word: SpeechWord) -> dict[str, Any]:
    return {"word": word.text.strip(), "start": round(word.start_s, 3), "end": round(word.end_s, 3)}


def _segment(number: int, segment: SpeechSegment) -> dict[str, Any]:
    data = segment.text.encode()
    return {
        "id": number,
        "seek": round(segment.window_s * _FRAMES_A_SECOND),
        "start": round(segment.start_s, 3),
        "end": round(segment.end_s, 3),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob if isfinite(segment.avg_logprob) else _LEAST_LOGPROB,
        "compression_ratio": len(data) / len(zlib.compress(data)),
        "no_speech_prob": segment.no_speech_prob or 0.0,
    }
