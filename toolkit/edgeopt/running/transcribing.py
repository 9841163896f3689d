"""A model of speech that transcribes a sound or a stream, for a person: segments as they are done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from edgeopt.errors import EdgeoptError
from edgeopt.graph.sound import Sound
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.recipes.inputs.wav_files import read_wav, read_wav_stream
from edgeopt.recipes.texts.encoder_decoder import read_encoder_decoder
from edgeopt.running.writing import WrittenResult
from edgeopt.runtime.bundle import is_bundle, parse_bundle
from edgeopt.runtime.decoding.generation import Account
from edgeopt.runtime.decoding.speech.options import SpeechOptions
from edgeopt.runtime.decoding.speech.segments import SpeechSegment
from edgeopt.runtime.decoding.speech.voice import require_voice
from edgeopt.runtime.runtime import Runtime

STREAM = "-"
"""The name of a WAV on the standard input."""


def transcribe_source(
    folder: Path,
    source: str,
    options: SpeechOptions,
    hear: Callable[[SpeechSegment, Account, bool], None],
    threads: int,
    budget: AnswerBudget | None = None,
    voice: str = "",
) -> WrittenResult:
    """Transcribe a .wav file, or the WAV that comes on the standard input.

    Args:
        folder: Of the model.
        source: The file; `-`: the standard input.
        options: What is asked.
        hear: Called with each segment, what the transcription took so far, and whether its times are the model's.
        threads: Of the engine; 0: the default.
        budget: Limits that this one answer is judged by.
        voice: A model of voice activity, by its bundle or ONNX file; empty: all is heard.

    Raises:
        EdgeoptError: If one of the models does not open, the sound is not read, or the model does not do what is asked.
    """
    with ExitStack() as stack:
        detector = stack.enter_context(opened_voice(voice, threads)) if voice else None
        from edgeopt.measurement.generation.right_writer import open_right_pair  # with onnx, which others do without

        opened = stack.enter_context(open_right_pair(folder, threads))
        sound = _streamed(sys.stdin.buffer) if source == STREAM else read_wav(Path(source))
        transcription = stack.enter_context(opened.transcribe(sound, options, voice=detector))
        interrupted = False
        try:
            for segment in transcription:
                hear(segment, transcription.account, transcription.writes_times)
        except KeyboardInterrupt:
            interrupted = True
            transcription.cancel()
            transcription.close()
        notes = (*opened.files.notes, *transcription.notes)
        return WrittenResult(
            model=opened.files.name,
            account=transcription.account,
            notes=notes,
            budget=budget,
            language=transcription.language,
            interrupted=interrupted,
            is_stream=source == STREAM,
        )


def needs_times(folder: Path, source: str) -> bool:
    """Return whether a sound is longer than the window of a model that writes times.

    Raises:
        EdgeoptError: If the model's configurations are damaged, or the sound is not read.
    """
    files = read_encoder_decoder(parse_bundle(folder).folder if is_bundle(folder) else folder)
    if files.audio is None or files.speech is None or not files.speech.times:
        return False
    return read_wav(Path(source)).seconds > files.audio.samples / files.audio.rate_hz


@contextmanager
def opened_voice(model: str, threads: int) -> Iterator[Runtime]:
    """Open a model of voice activity.

    Raises:
        EdgeoptError: If it does not open, or is of another task.
    """
    from edgeopt.running.live_subject import opened_subject  # with OpenCV, which others do without

    with opened_subject(Path(model), "", None, threads or None, None, None) as subject:
        if not isinstance(subject.served, Runtime):
            raise EdgeoptError(f"{model} is a pipeline", remedy="name a model of voice activity")
        require_voice(subject.served)
        yield subject.served


def _streamed(file: BinaryIO) -> Iterator[Sound]:
    """Yield what comes on the standard input, and end where the person ends it."""
    return read_wav_stream(file, "the standard input")
