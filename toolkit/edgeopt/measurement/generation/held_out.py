"""Sounds or texts with the original's answers: they judge what another form of an encoder with a decoder loses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, InvalidFileError
from edgeopt.graph.sound import Sound
from edgeopt.measurement.generation.perplexity import TextScore
from edgeopt.measurement.generation.sides.turns import Prompt
from edgeopt.recipes.inputs.wav_files import read_wav
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import AnswerOptions, Long
from edgeopt.runtime.decoding.speech.long_sounds import fitted_sound
from edgeopt.system.disk.files import read_text
from edgeopt.system.processes.time_limit import require_time, time_left_s
from edgeopt.system.text import plural

LEAST_SOURCES, MOST_SOURCES = 4, 48
_MOST_TEXT_BYTES, _MOST_TRANSCRIPT_BYTES = 16 << 20, 1 << 20
_SAY = "write what is said in the sound, or remove the .txt files beside all sounds"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A sound or the tokens of a text, and what the original answers."""

    source: Prompt
    answer: tuple[int, ...]
    """Its tokens, the end too."""
    transcript: str = ""
    """Words spoken in the sound; empty: there is no transcript."""


def read_sources(given: str, opened: EncoderDecoder) -> list[Prompt]:
    """Return up to 48 sounds or texts, evenly spread over what is given.

    Args:
        given: A folder of .wav files or one of them, whose windows are heard; or a file with a text in each line.
        opened: What hears or reads them.

    Raises:
        EdgeoptError: If none is given, one cannot be read, or they are fewer than 4.
    """
    if not given:
        raise no_sources(opened)
    kind = kind_of(opened)
    sources = _sounds(Path(given), opened) if opened.hears else _texts(Path(given), opened)
    if len(sources) < LEAST_SOURCES:
        text = f"{plural(len(sources), 'window')} of sound" if opened.hears else plural(len(sources), "text")
        raise EdgeoptError(f"{given} has {text}, {LEAST_SOURCES} are needed", remedy=f"pass {kind} with more of them")
    return [sources[i] for i in _kept(len(sources))]


def read_transcripts(given: str, opened: EncoderDecoder) -> list[str]:
    """Return what is said in each sound of `read_sources`: NAME.txt beside NAME.wav.

    Returns:
        None of them where one sound has no such file, or is heard in several windows.

    Raises:
        InvalidFileError: If one is no text in UTF-8, or says nothing.
    """
    files = _sound_files(Path(given)) if opened.files.audio else []
    if not files or not all(file.with_suffix(".txt").is_file() for file in files):
        return []
    if len(_sounds(Path(given), opened)) > len(files):
        return []
    kept = [files[i].with_suffix(".txt") for i in _kept(len(files))]
    transcripts = [read_text(path, remedy=_SAY, most_bytes=_MOST_TRANSCRIPT_BYTES).strip() for path in kept]
    if silent := next((file for file, text in zip(kept, transcripts, strict=True) if not text), None):
        raise InvalidFileError(f"{silent} says nothing", remedy=_SAY)
    return transcripts


def _kept(count: int) -> list[int]:
    kept: list[int] = np.linspace(0, count - 1, min(MOST_SOURCES, count)).round().astype(int).tolist()
    return kept


def kind_of(opened: EncoderDecoder) -> str:
    """Return what `read_sources` takes."""
    return "a folder of .wav files" if opened.hears else "a file with a text in each line"


def lengths_of(sources: Sequence[Prompt]) -> str:
    """Return how long sounds or texts are, in words."""
    tokens = [len(source) for source in sources if not isinstance(source, Sound)]
    return f"texts of {round(sum(tokens) / len(tokens))} tokens" if tokens else "sounds of one window"


def require_alike(models: Mapping[str, object]) -> None:
    """Raise unless all are encoders with decoders that take the same, or none is one.

    Raises:
        EdgeoptError: If so.
    """
    kinds = {label: _takes(model) for label, model in models.items()}
    first, *others = kinds
    if unlike := next((other for other in others if kinds[other] != kinds[first]), None):
        raise EdgeoptError(f"{first} {kinds[first]}, {unlike} {kinds[unlike]}", remedy="name models that take the same")


def _takes(model: object) -> str:
    if not isinstance(model, EncoderDecoder):
        return "answers prompts"
    return "hears sounds" if model.hears else "reads texts"


def require_answers(opened: EncoderDecoder, output_tokens: int) -> None:
    """Raise where answers are longer than a model writes.

    Raises:
        EdgeoptError: If so.
    """
    if opened.begins_with + output_tokens > opened.context:
        raise EdgeoptError(
            f"{output_tokens} tokens behind {opened.begins_with} are more than the {opened.context} of the model",
            remedy="ask for shorter answers with --output-tokens",
        )


def hash_held(held: Sequence[HeldOut]) -> str:
    """Return the hash of sounds or texts with their answers."""
    result = hashlib.sha256()
    for held_out in held:
        result.update(
            held_out.source.samples.tobytes() if isinstance(held_out.source, Sound) else repr(held_out.source).encode()
        )
        result.update(repr(held_out.answer).encode())
    return result.hexdigest()


def no_sources(opened: EncoderDecoder | None = None) -> EdgeoptError:
    """Return that nothing tells what a form loses."""
    kinds = "a folder of .wav files, or a file with a text in each line," if opened is None else kind_of(opened)
    remedy = f"pass --eval: {kinds} that the model did not learn"
    heard = "sound or text" if opened is None else "sound" if opened.hears else "text"
    return EdgeoptError(f"no {heard} judges what a form loses", remedy=remedy)


def _sounds(path: Path, opened: EncoderDecoder) -> list[Prompt]:
    audio = opened.files.audio
    assert audio is not None
    return [window for file in _sound_files(path) for window in fitted_sound(read_wav(file), audio, Long.WINDOWS)]


def _sound_files(path: Path) -> list[Path]:
    return sorted(other for other in path.glob("**/*") if other.suffix.lower() == ".wav") if path.is_dir() else [path]


def _texts(path: Path, opened: EncoderDecoder) -> list[Prompt]:
    text = read_text(path, remedy="pass a text in UTF-8, one a line", most_bytes=_MOST_TEXT_BYTES)
    encoded = (opened.tokenizer.encode(line) for line in text.splitlines() if line.strip())
    return [tokens[: opened.reads] for tokens in encoded if tokens]


def made_up(opened: EncoderDecoder, tokens: Sequence[int], seed: int) -> list[Prompt]:
    """Return a window of noise, or random tokens of each length."""
    chance, audio = np.random.default_rng(seed), opened.files.audio
    if audio is not None:
        return [Sound((0.1 * chance.standard_normal(audio.samples)).astype(np.float32), audio.rate_hz)]
    plain = sorted(set(range(opened.tokenizer.size)) - set(opened.tokenizer.special.values()))
    return [chance.choice(plain, count).tolist() for count in tokens]


def hold_out(
    original: EncoderDecoder,
    sources: Sequence[Prompt],
    most_tokens: int,
    tell: Callable[[int, int], None] = lambda *_: None,
    transcripts: Sequence[str] = (),
) -> list[HeldOut]:
    """Return each source with the original's answer; 4 of them at least, however short a time limit is.

    Args:
        original: What others are compared with.
        sources: Sounds or tokens of texts.
        most_tokens: Of an answer.
        tell: Hears how many of how many are answered.
        transcripts: Of the sounds, where they have any.

    Raises:
        EdgeoptError: If one of them does not fit the model.
    """
    held_outs = list[HeldOut]()
    for i, source in enumerate(sources):
        if i >= LEAST_SOURCES and time_left_s() < 0:
            break
        tell(i, len(sources))
        with original.generate(source, AnswerOptions(most_tokens=most_tokens)) as answer:
            said = transcripts[i] if transcripts else ""
            held_outs.append(HeldOut(source, tuple(piece.token for piece in answer), said))
    return held_outs


def score_answers(model: EncoderDecoder, held: Sequence[HeldOut]) -> TextScore:
    """Return how well a model predicts the original's answers, each behind the tokens of the original before it.

    Raises:
        OutOfTime: At the end of a time limit.
    """
    losses, likeliest = list[float](), list[NDArray[np.int64]]()
    for held_out in held:
        require_time()
        logits = model.logits(held_out.source, held_out.answer).astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        found = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        losses.append(-float(found[np.arange(len(held_out.answer)), held_out.answer].mean()))
        likeliest.append(logits.argmax(axis=-1))
    return TextScore(tuple(losses), tuple(likeliest))
