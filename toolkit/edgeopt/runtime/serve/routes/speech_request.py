"""The fields of a request to transcribe or translate a sound.

Source: OpenAI API reference, "Create transcription" and "Create translation". What is not done here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from edgeopt.errors import UnsupportedError
from edgeopt.recipes.texts.encoder_decoder import EncoderDecoderFiles
from edgeopt.recipes.texts.speech import TRANSLATE
from edgeopt.runtime.decoding.speech.options import SpeechOptions
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import unknown_model, wrong

GRANULARITIES: Final = "timestamp_granularities[]"
_WORD, _SEGMENT = "word", "segment"
_KNOWN: Final = ("model", "prompt", "response_format", "temperature")
_CHUNKING: Final = "chunking_strategy"
_CHUNKING_TYPE: Final = f"{_CHUNKING}[type]"
"""An object of it in a form, field by field."""
_CHUNKINGS: Final[Mapping[str, str]] = {_CHUNKING: "auto", _CHUNKING_TYPE: "server_vad"}
_OF_TRANSCRIPTIONS: Final = ("language", "stream", GRANULARITIES, *_CHUNKINGS)
JSON, TEXT, SRT, VTT, VERBOSE = "json", "text", "srt", "vtt", "verbose_json"
_FORMS: Final = (JSON, TEXT, SRT, VTT, VERBOSE)
_TIMED: Final = (SRT, VTT, VERBOSE)
_MOST_TEMPERATURE: Final = 1.0
_LONGEST_PROMPT: Final = 20_000
_YES, _NO = ("true", "1"), ("false", "0", "")


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """One request."""

    options: SpeechOptions
    form: str
    """Its `response_format`."""
    streams: bool
    translates: bool
    tells_segments: bool = True
    """Whether `verbose_json` lists segments; words are listed where `options` asks for them."""


def read_speech_request(
    fields: Mapping[str, str],
    model: str,
    files: EncoderDecoderFiles,
    limits: Limits,
    *,
    translates: bool,
    skips_silence: bool = False,
) -> SpeechRequest:
    """Return what a form asks for.

    Args:
        fields: Of the form, but for its file.
        model: Name of the model.
        files: Its configurations.
        limits: Of the server.
        translates: Whether it came to the path of translations.
        skips_silence: Whether a model of voice activity stands before this one.

    Raises:
        RefusedError: If a field holds what it must not, or asks for what is not done here.
    """
    known = (*_KNOWN, *(() if translates else _OF_TRANSCRIPTIONS))
    if unknown := next((name for name in fields if name not in known), None):
        raise wrong(unknown[:60], "this server does not do that; leave it out")
    if fields.get("model", model) != model:
        raise unknown_model(fields["model"], model)
    for name, value in _CHUNKINGS.items():
        if name in fields and fields[name] != value:
            raise wrong(_CHUNKING, 'send auto or {"type": "server_vad"}')
        if name in fields and not skips_silence:
            raise wrong(_CHUNKING, "this server skips no silence, as it began without --voice-activity; leave it out")
    form = fields.get("response_format", JSON)
    if form not in _FORMS:
        raise wrong("response_format", f"send {', '.join(_FORMS[:-1])} or {_FORMS[-1]}")
    assert files.speech is not None
    is_timed = form in _TIMED
    if is_timed and not files.speech.times:
        raise wrong("response_format", f"send {JSON} or {TEXT}: this model writes no times")
    granularities = _granularities(fields.get(GRANULARITIES, ""), form)
    prompt = fields.get("prompt", "")
    if len(prompt) > _LONGEST_PROMPT:
        raise wrong("prompt", f"send up to {_LONGEST_PROMPT} characters: the model reads the last ones")
    temperature = _temperature(fields.get("temperature", "0"))
    options = SpeechOptions(
        language=fields.get("language", ""),
        task=TRANSLATE if translates else "",
        prompt=prompt,
        times=True if is_timed else None,
        words=_WORD in granularities,
        temperatures=(temperature,) if temperature else (),
        window_tokens=limits.answer_tokens,
    )
    try:
        files.speech.first_tokens(options.language, options.task)
    except UnsupportedError as error:
        raise wrong("language" if options.language else "model", f"{error.problem}; {error.remedy}") from error
    streams = _streams(fields.get("stream", ""), form)
    return SpeechRequest(options, form, streams, translates, tells_segments=_SEGMENT in granularities)


def _granularities(text: str, form: str) -> tuple[str, ...]:
    if not text:
        return (_SEGMENT,)
    if form != VERBOSE:
        raise wrong(GRANULARITIES, f"send response_format {VERBOSE} beside it")
    names = tuple(text.split(","))
    if any(name not in (_WORD, _SEGMENT) for name in names):
        raise wrong(GRANULARITIES, f"there is no such granularity: send {_WORD}, {_SEGMENT} or both")
    return names


def _temperature(text: str) -> float:
    try:
        temperature = float(text or "0")
    except ValueError:
        temperature = -1.0
    if not 0 <= temperature <= _MOST_TEMPERATURE:
        raise wrong("temperature", f"send a number from 0 to {_MOST_TEMPERATURE:g}")
    return temperature


def _streams(text: str, form: str) -> bool:
    if text.lower() not in (*_YES, *_NO):
        raise wrong("stream", "send true or false")
    if text.lower() in _NO:
        return False
    if form in _TIMED:
        raise wrong("stream", f"send response_format {JSON} or {TEXT} beside it")
    return True
