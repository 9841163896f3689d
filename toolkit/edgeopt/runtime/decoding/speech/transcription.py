"""A sound of any length as segments of text, which come as they are done.

Windows follow each other from the last time that was written, so that no word is cut at an edge.

Source: Radford et al., 2022, arXiv:2212.04356, section 3.8; `generate` of Whisper in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from time import perf_counter_ns
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, Note, NoteKind, UnsupportedError
from edgeopt.executors.onnxruntime.cross_decoder import CrossDecoder, Heard
from edgeopt.recipes.texts.encoder_decoder import EncoderDecoderFiles
from edgeopt.recipes.texts.speech import SpeechSettings
from edgeopt.recipes.texts.tokens import Tokens
from edgeopt.runtime.decoding.generation import Account
from edgeopt.runtime.decoding.speech.options import SpeechOptions
from edgeopt.runtime.decoding.speech.passages import Passage, frames_of
from edgeopt.runtime.decoding.speech.rules import TokenRules
from edgeopt.runtime.decoding.speech.segments import SpeechSegment, cut_at_times
from edgeopt.runtime.decoding.speech.window import (
    Doubts,
    WindowAnswer,
    WindowListener,
    WindowQuestion,
    answer_window,
)
from edgeopt.runtime.decoding.speech.words import STEP_S, SpeechWord, token_times, words_of
from edgeopt.system.processes.closing import Closing

_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_SURE = 0.5
"""Text that was drawn at this temperature or above is not carried over: it may be wrong."""
_BEFORE = "<|startofprev|>"


class SpeechModel(Protocol):
    """A model that hears, as a transcription asks for it."""

    files: EncoderDecoderFiles
    tokenizer: Tokens

    def hear(self, features: NDArray[np.float32]) -> Heard:
        """Return what the encoder gives for the features of a window."""
        ...

    def decoder_of(self, heard: Heard) -> CrossDecoder:
        """Return a decoder that holds nothing, and suppresses nothing."""
        ...

    @property
    def times_words(self) -> bool:
        """Whether the decoder tells where it looks, by which words get their times."""
        ...

    def require_open(self) -> None:
        """Raise where the model is closed."""
        ...


class Transcription(Closing):
    """The transcription of a sound: iterate over it for its segments, or call `text()` for the whole text."""

    def __init__(self, model: SpeechModel, options: SpeechOptions, passages: Iterator[Passage], *, times: bool) -> None:
        """Prepare a transcription; it begins when the first segment is asked for.

        Args:
            model: Hears.
            options: What is asked.
            passages: Of the sound.
            times: Whether the model writes times; else each passage fits in a window.

        Raises:
            UnsupportedError: If the model does not do what is asked.
            EdgeoptError: If the prompt cannot be read.
        """
        files = model.files
        speech, audio = files.speech, files.audio
        if speech is None or audio is None:
            raise UnsupportedError(f"{files.name} hears no sound", remedy="call generate with a text")
        if times and not speech.times:
            raise UnsupportedError(f"{files.name} writes no times", remedy="leave times out")
        if options.words and not model.times_words:
            raise UnsupportedError(
                f"{files.name} tells no times of words: its decoder does not give where it looks (cross_attentions)",
                remedy="export it again from its Hugging Face folder: edgeopt export hf:FOLDER --word-times",
            )
        self._begun_ns = perf_counter_ns()
        self._model, self._options, self._speech, self._times = model, options, speech, times
        self._first = speech.first_tokens(options.language, options.task, times=times)
        step, _ = frames_of(audio)
        self._frame_s = step / audio.rate_hz
        self._rules = TokenRules(
            files.suppress,
            files.begin_suppress,
            first_time=speech.first_time if times else None,
            end=files.end[0],
            last_start=speech.last_start,
        )
        self.notes = list[Note]()
        """Notes on the prompt."""
        self._most_before = files.context // 2 - 1
        self._prompt = self._read_prompt()
        self._carries = speech.carries_text if options.carries_text is None else options.carries_text
        self._said = [self._prompt] if self._prompt else list[tuple[int, ...]]()
        self._question = self._make_question(files, speech)
        self.language = speech.language_of(self._first.tokens[1]) if len(self._first.tokens) > 1 else ""
        """Code of the language that is spoken; empty until the model chose it, and for models of a single language."""
        self._counts = dict[str, int]()
        self._at_ns, self._reason = list[int](), ""
        self._is_cancelled, self._is_sure = False, True
        self._hears_window = WindowListener(lambda: self._is_cancelled, self._count_tokens)
        self._steps = self._segments(passages)

    def __iter__(self) -> Iterator[SpeechSegment]:
        return self

    def __next__(self) -> SpeechSegment:
        return next(self._steps)

    @property
    def account(self) -> Account:
        """Times and counts so far; tokens of times, and of texts that were tried again, count too."""
        counts = {"windows": 0, **self._counts}
        return Account(**counts, token_at_ns=tuple(self._at_ns), reason=self._reason, comes_whole=False)

    @property
    def writes_times(self) -> bool:
        """Whether the segments' times are written by the model; otherwise they are those of the windows."""
        return self._times

    def cancel(self) -> None:
        """End the transcription before its next token. Any thread may call it."""
        self._is_cancelled = True

    def close(self) -> None:
        """End the transcription."""
        if not self._reason:
            self._is_cancelled, self._reason = True, "cancelled"
        self._steps.close()

    def text(self) -> str:
        """Return the rest of the transcription as one text."""
        return "".join(segment.text for segment in self).strip()

    def _segments(self, passages: Iterator[Passage]) -> Generator[SpeechSegment]:
        is_cut = False
        for passage in passages:
            frame = 0
            while not self._is_cancelled:
                self._model.require_open()
                begun_ns = perf_counter_ns()
                features, count = passage.features.window(frame)
                if not count:
                    break
                fed_ns = perf_counter_ns()
                heard = self._model.hear(features)
                self._count(
                    tokenize_ns=fed_ns - begun_ns,
                    encode_ns=perf_counter_ns() - fed_ns,
                    heard_rows=heard.rows,
                    windows=1,
                )
                answer = self._answer(heard)
                if answer.is_cancelled:
                    break
                is_cut, self._is_sure = is_cut or answer.is_cut, answer.temperature < _SURE
                heard_s = count * self._frame_s
                segments, until_s = list[SpeechSegment](), heard_s
                if not answer.is_silent:
                    segments, until_s = self._cut(answer, frame * self._frame_s, heard_s, passage)
                if segments and self._options.words:
                    segments = self._with_words(segments, heard, (frame * self._frame_s, heard_s), passage)
                yield from segments
                step = round(until_s / self._frame_s) if self._times else count
                frame += step if step > 0 else count  # two times of 0: no step would ever be made
            if self._is_cancelled:
                break
        self._reason = "cancelled" if self._is_cancelled else "length" if is_cut else "end"

    def _answer(self, heard: Heard) -> WindowAnswer:
        if self._first.languages:
            self._choose_language(heard)
        before, question = self._before(), self._question
        begin = (*before, *self._first.tokens)
        question = replace(question, begin=begin, start=len(before), most=min(question.most, self._room(len(begin))))
        begun_ns = perf_counter_ns()
        self._counts.setdefault("prompt_tokens", 0)
        self._counts["prompt_tokens"] += len(begin)
        answer = answer_window(question, self._rules, lambda: self._model.decoder_of(heard), self._hears_window)
        if not self._counts.get("prefill_ns"):
            self._count(prefill_ns=(self._begun_ns + self._at_ns[0] if self._at_ns else perf_counter_ns()) - begun_ns)
        return answer

    def _room(self, begin: int) -> int:
        """Return how many tokens fit behind those that an answer begins with."""
        return self._model.files.context - begin

    def _cut(
        self, answer: WindowAnswer, window_s: float, heard_s: float, passage: Passage
    ) -> tuple[list[SpeechSegment], float]:
        """Return the segments of a window with anything in them, and how far it was heard in seconds."""
        first = self._rules_time
        parts, until_s = cut_at_times(answer.tokens, first, heard_s)
        end, segments = self._model.files.end[0], list[SpeechSegment]()
        for part in parts:
            self._said.append(part.tokens)
            text = self._model.tokenizer.decode([token for token in part.tokens if token < end])
            if not text.strip():
                continue
            segments.append(
                SpeechSegment(
                    passage.original_s(window_s + min(part.start_s, heard_s)),
                    passage.original_s(window_s + min(part.end_s, heard_s)),
                    text,
                    part.tokens,
                    answer.avg_logprob,
                    answer.no_speech_prob,
                    answer.temperature,
                    passage.original_s(window_s),
                )
            )
        return segments, until_s

    def _with_words(
        self, segments: list[SpeechSegment], heard: Heard, window: tuple[float, float], passage: Passage
    ) -> list[SpeechSegment]:
        """Return the segments of a window, of which begin and length are given, with the times of their words.

        All its text goes through the decoder once more, behind the first tokens of an answer without times: heads look
        from each token to the sound of the next one.
        """
        (window_s, heard_s), end = window, self._model.files.end[0]
        texts = [[token for token in segment.tokens if token < end] for segment in segments]
        begin, tokens = self._silent_begin(), [token for text in texts for token in text]
        tokens = tokens[: self._room(len(begin))]
        looks = self._model.decoder_of(heard).looks([*begin, *tokens])
        rows = max(round(heard_s / STEP_S), 1)  # behind them is silence that fills the window up
        times = token_times(looks[:, len(begin) - 1 :, :rows], self._speech.median_width).tolist()
        self._count(computed_tokens=len(begin) + len(tokens))
        place, result = 0, list[SpeechSegment]()
        for segment, text in zip(segments, texts, strict=True):
            text = text[: max(len(tokens) - place, 0)]
            told = words_of(text, times[place : place + len(text) + 1], self._model.tokenizer.decode, self.language)
            spans = [[passage.original_s(window_s + side) for side in (word.start_s, word.end_s)] for word in told]
            words = tuple(SpeechWord(word.text, *span) for word, span in zip(told, spans, strict=True))
            result.append(replace(segment, words=words))
            place += len(text)
        return result

    def _silent_begin(self) -> tuple[int, ...]:
        """Return the tokens that an answer without times begins with."""
        silent = self._speech.silent
        tokens = self._first.tokens
        return tokens if silent is None or silent in tokens else (*tokens, silent)

    @property
    def tokens(self) -> list[int]:
        """Tokens of all segments so far, also of segments without text."""
        said = self._said[1:] if self._prompt else self._said
        return [token for part in said for token in part]

    @property
    def _rules_time(self) -> int | None:
        return self._speech.first_time if self._times else None

    def _before(self) -> tuple[int, ...]:
        """Return the tokens of what was said before this window, with the one in front of them."""
        if self._carries and self._is_sure and self._said:
            first = self._speech.first_time
            parts = [
                part[:-1] if first is not None and len(part) > 2 and part[-2] >= first else part for part in self._said
            ]
            tokens = [token for part in parts for token in part][-self._most_before :]
        else:
            tokens = list(self._prompt)
        return (self._before_token(), *tokens) if tokens else ()

    def _before_token(self) -> int:
        token = self._speech.before
        token = self._model.tokenizer.special.get(_BEFORE) if token is None else token
        if token is None:
            raise UnsupportedError(
                f"{self._model.files.name} has no token before what was said earlier: no prev_sot_token_id in "
                "generation_config.json",
                remedy="leave the prompt out, and carry no text",
            )
        return token

    def _read_prompt(self) -> tuple[int, ...]:
        text = self._options.prompt.strip()
        if not text:
            return ()
        self._before_token()
        if name := next((name for name in self._model.tokenizer.special if name in text), ""):
            raise EdgeoptError(f"the prompt holds {name}, which is no text", remedy="leave it out of the prompt")
        tokens = self._model.tokenizer.encode(f" {text}")
        if (more := len(tokens) - self._most_before) > 0:
            cut = f"the first {more} of {len(tokens)} tokens of the prompt are left out: the model reads the last ones"
            self.notes.append(Note(NoteKind.INFO, cut))
        return tuple(tokens[-self._most_before :])

    def _make_question(self, files: EncoderDecoderFiles, speech: SpeechSettings) -> WindowQuestion:
        options = self._options

        def chosen(value: float | None, configured: float | None) -> float | None:
            return configured if value is None else value

        doubts = Doubts(
            chosen(options.compression_ratio_threshold, speech.compression),
            chosen(options.logprob_threshold, speech.logprob),
            chosen(options.no_speech_threshold, speech.no_speech),
        )
        beams = replace(files.beams, count=options.beams) if options.beams else files.beams
        return WindowQuestion(
            begin=(),
            start=0,
            most=options.window_tokens or files.context,
            end=files.end,
            vocabulary=speech.vocabulary,
            no_speech_token=speech.no_speech_token,
            temperatures=options.temperatures or (_TEMPERATURES if doubts.are_any else _TEMPERATURES[:1]),
            doubts=doubts,
            beams=beams,
            seed=options.seed,
        )

    def _choose_language(self, heard: Heard) -> None:
        """Take the likeliest language, behind the first token; it stays for the whole sound."""
        first = self._first
        logits = self._model.decoder_of(heard).run(first.tokens[:1])[-1]
        known = np.asarray(first.languages)
        token = int(known[logits[known].argmax()])
        self._first = replace(first, tokens=(first.tokens[0], token, *first.tokens[1:]), languages=())
        self.language = self._speech.language_of(token)

    def _count(self, **more: int) -> None:
        for name, number in more.items():
            self._counts[name] = self._counts.get(name, 0) + number

    def _count_tokens(self, tokens: int, computed: int) -> None:
        self._count(computed_tokens=computed, runs=tokens)
        self._at_ns += [perf_counter_ns() - self._begun_ns] * tokens
