"""An encoder with a decoder that answers a sound or a text, for a person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from edgeopt.errors import EdgeoptError, Note, NoteKind
from edgeopt.graph.sound import Sound
from edgeopt.measurement.generation.answer_budget import AnswerBudget
from edgeopt.recipes.inputs.wav_files import read_wav
from edgeopt.running.writing import SUMMARISE, WrittenResult, write_to
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Long, Piece
from edgeopt.system.text import plural


def answer_source(
    folder: Path,
    source: Path | None,
    prompt: str,
    asked: AnswerOptions,
    hear: Callable[[Piece, Account], None],
    threads: int,
    budget: AnswerBudget | None = None,
    long: str = Long.REFUSE,
) -> WrittenResult:
    """Answer one sound or text.

    Args:
        folder: Of the model.
        source: A .wav file; None: the prompt is answered.
        prompt: A text.
        asked: What the answer may be.
        hear: Called with each token, and what the answer took so far.
        threads: Of the engine; 0: the default.
        budget: Limits that this one answer is judged by.
        long: A word of `Long`: what becomes of a sound or a text that is too long.

    Raises:
        EdgeoptError: If the model takes the other of them, or they cannot be read.
    """
    if long == SUMMARISE:
        raise EdgeoptError(
            "an encoder with a decoder summarises nothing", remedy="cut with --long tail or head, or --long windows"
        )
    given, asked = read_wav(source) if source else prompt, replace(asked, long=Long(long))
    from edgeopt.measurement.generation.right_writer import open_right_pair  # with onnx, which others do without

    with open_right_pair(folder, threads) as opened, opened.generate(given, asked) as answer:
        interrupted = write_to(hear, answer)
        notes = (*opened.files.notes, *_left_out(given, opened, asked.long))
        return WrittenResult(
            model=opened.files.name, account=answer.account, notes=notes, budget=budget, interrupted=interrupted
        )


def _left_out(given: Sound | str, opened: EncoderDecoder, long: Long) -> list[Note]:
    """Return how much of a sound or a text was cut."""
    audio = opened.files.audio
    if isinstance(given, Sound) and audio and long is not Long.WINDOWS:
        window_s = audio.samples / audio.rate_hz
        text = f"{given.seconds - window_s:.1f} s of the sound were" if given.seconds > window_s else ""
    elif isinstance(given, str):
        count = len(opened.tokenizer.encode(given)) - opened.reads
        text = f"{plural(count, 'token')} of the text were" if count > 0 else ""
    else:
        text = ""
    return [Note(NoteKind.INFO, f"{text} left out: --long {long}")] if text else []
