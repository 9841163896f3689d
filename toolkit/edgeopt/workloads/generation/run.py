"""`run` of a model that writes tokens: one answer, as it comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgeopt.errors import EdgeoptError
from edgeopt.recipes.texts.answer_defaults import GUESSES
from edgeopt.recipes.texts.speech import TRANSLATE
from edgeopt.running.answering import answer_source
from edgeopt.running.answers import RunListener
from edgeopt.running.talking import TalkResult, talk
from edgeopt.running.transcribing import STREAM, needs_times, transcribe_source
from edgeopt.running.writing import Prompting, WrittenResult, read_system, write_answer
from edgeopt.runtime.decoding.generation import AnswerOptions
from edgeopt.runtime.decoding.sampling import NEEDS_TEMPERATURE, Sampling, sampling_options
from edgeopt.runtime.decoding.speech.options import SpeechOptions
from edgeopt.system.disk.files import read_text
from edgeopt.workloads import refuse_others
from edgeopt.workloads.generation.guessing import NONE, require_guesses
from edgeopt.workloads.generation.options import GenerationRun
from edgeopt.workloads.generation.source import is_encoder_decoder

_REMEDY = "edgeopt run --help lists the options with their limits"
_DRAWN = tuple(sampling_options())
_OF_TALKS = (
    *_DRAWN,
    "chat",
    "output_tokens",
    "stop",
    "schema",
    "grammar",
    "system",
    "context",
    "context_shift",
    "exact",
    "threads",
)
"""Options of a conversation."""
_OF_PAIRS = (*_DRAWN, "prompt", "output_tokens", "stop", "long", "budget", "beams", "threads")
"""Options of an encoder with a decoder."""
_OF_SPEECH = ("times", "word_times", "language", "translate", "voice_activity")
"""Options that ask for a transcription."""
_ONLY_PAIRS = ("beams", *_OF_SPEECH)
"""Options that say nothing to a language model."""
_OF_TRANSCRIPTIONS = (*_OF_SPEECH, "prompt", "output_tokens", "temperature", "seed", "budget", "beams", "threads")


def work(
    source: str, options: GenerationRun, hears: RunListener | None, sample: str | None = None
) -> WrittenResult | TalkResult:
    """Answer a prompt, or talk; an encoder with a decoder also answers a sound.

    Args:
        source: The model.
        options: What the answer may be.
        hears: Hears each piece.
        sample: A .wav file for an encoder with a decoder, or `-`: a WAV on the standard input.
    """
    hears = hears or RunListener()
    _require_answerable(source, options, sample)
    asked = _asked(options)
    if is_encoder_decoder(source):
        if sample is not None and _is_transcribed(source, options, sample):
            refuse_others(options, _OF_TRANSCRIPTIONS, "transcriptions")
            return transcribe_source(
                Path(source),
                sample,
                _speech_options(options),
                hears.segment,
                options.threads,
                options.budget,
                options.voice_activity or "",
            )
        refuse_others(options, _OF_PAIRS, "encoders with decoders that answer texts")
        sound = Path(sample) if sample is not None else None
        return answer_source(
            Path(source),
            sound,
            options.prompt or "",
            asked,
            hears.write,
            options.threads,
            options.budget,
            options.long or "refuse",
        )
    if options.chat:
        refuse_others(options, _OF_TALKS, "conversations")
        system = read_system(options.system) if options.system else ""
        return talk(
            source,
            asked,
            hears.ask,
            hears.write,
            hears.over,
            options.threads,
            options.context,
            system,
            goes_on=hears.talks_on,
        )
    if options.prefixes is not None and options.system is None:
        raise EdgeoptError("--prefixes belongs to --system", remedy="add --system, or leave it out")
    prompting = Prompting(
        options.system,
        options.prefixes,
        options.long or "refuse",
        options.context,
        "" if options.draft in (None, NONE) else str(options.draft),
        options.image,
        options.raw,
    )
    assert options.prompt is not None
    return write_answer(
        source, options.prompt, asked, hears.write, options.threads, options.budget, prompting, hears.progress
    )


def _is_transcribed(source: str, options: GenerationRun, sample: str) -> bool:
    """Return whether a sound becomes segments; else its text comes token by token."""
    if any(getattr(options, name) for name in (*_OF_SPEECH, "prompt")) or sample == STREAM:
        return True
    return options.long is None and needs_times(Path(source), sample)


def _speech_options(options: GenerationRun) -> SpeechOptions:
    try:
        return SpeechOptions(
            language=options.language,
            task=TRANSLATE if options.translate else "",
            prompt=options.prompt or "",
            times=options.times or None,
            words=options.word_times,
            beams=options.beams,
            temperatures=() if options.temperature is None else (options.temperature,),
            window_tokens=options.output_tokens or 0,
            seed=options.seed or 0,
        )
    except ValueError as error:
        raise EdgeoptError(str(error), remedy="take a lower temperature, or leave it out") from error


def _require_answerable(source: str, options: GenerationRun, sample: str | None) -> None:
    if "" in options.stop:
        raise EdgeoptError("--stop is empty", remedy="write the text before which the answer ends")
    if options.prompt == "":
        raise EdgeoptError("--prompt is empty", remedy="write what is to be answered")
    require_guesses(options.guesses, options.draft)
    _require_pictures_fit(options)
    if is_encoder_decoder(source):
        if sample is None and options.prompt is None:
            raise EdgeoptError(
                "an encoder with a decoder answers SOURCE, a .wav file, or --prompt TEXT", remedy="give one of them"
            )
    elif name := next((name for name in _ONLY_PAIRS if getattr(options, name)), ""):
        raise EdgeoptError(f"--{name.replace('_', '-')} is not for language models", remedy="leave it out")
    elif options.chat and (options.prompt is not None or sample is not None):
        raise EdgeoptError("--chat asks for each turn", remedy="leave --prompt and SOURCE out")
    elif options.chat and options.raw:
        raise EdgeoptError("--chat holds a conversation, which is never raw", remedy="leave --raw out")
    elif options.raw and options.prompt is None:
        raise EdgeoptError("--raw belongs to --prompt TEXT", remedy="add --prompt, or leave --raw out")
    elif options.prompt is None and not options.chat:
        raise EdgeoptError(
            f"{source} is a language model: it answers --prompt TEXT, and no SOURCE",
            remedy="write --prompt TEXT, or --chat",
        )
    elif sample is not None:
        raise EdgeoptError("--prompt takes the place of SOURCE", remedy="leave one of them out")
    drawn = next((name for name in NEEDS_TEMPERATURE if getattr(options, name) is not None), "")
    if drawn and not options.temperature:
        raise EdgeoptError(
            f"--{drawn.replace('_', '-')} is for tokens that are drawn, and none are", remedy="add --temperature 0.8"
        )


def _require_pictures_fit(options: GenerationRun) -> None:
    """Raise where an option does not go with pictures."""
    if not options.image:
        return
    if options.prompt is None:
        raise EdgeoptError("--image belongs to --prompt TEXT", remedy="ask something of the picture with --prompt")
    if options.system is not None:
        raise EdgeoptError(
            "--system stands before a prompt of text alone",
            remedy="leave it out, or serve the model: --system holds there",
        )
    if options.long not in (None, "refuse"):
        raise EdgeoptError("a prompt with pictures is never cut", remedy="leave --long out, and ask shortly")
    if options.raw:
        raise EdgeoptError("--raw is for a prompt of text alone", remedy="leave it out")


def _asked(options: GenerationRun) -> AnswerOptions:
    guesses = GUESSES if options.guesses is None and options.draft else options.guesses
    values: dict[str, Any] = {
        "most_tokens": options.output_tokens,
        "stop": options.stop or None,
        "guesses": guesses,
        "beams": options.beams,
        "exact": options.exact or None,
        "shifts": options.context_shift or None,
        "uses_draft": options.draft != NONE,
        "schema": _form_in(options.schema),
        "grammar": _form_in(options.grammar),
    }
    drawn = {name: getattr(options, name) for name in _DRAWN}
    try:
        return AnswerOptions(sampling=Sampling(**_known(drawn)), **_known(values))
    except ValueError as error:
        is_of_form = options.schema or options.grammar
        remedy = "--schema takes a JSON schema, --grammar a grammar; give one of them" if is_of_form else _REMEDY
        raise EdgeoptError(str(error), remedy=remedy) from error


def _form_in(file: Path | None) -> str | None:
    return read_text(file, remedy="name a file with a JSON schema or a grammar") if file else None


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def summarize(result: WrittenResult | TalkResult) -> str:
    """Return notes and figures behind an answer, a line each."""
    return "\n".join([*(f"{note.kind}: {note}" for note in result.notes), str(result)])
