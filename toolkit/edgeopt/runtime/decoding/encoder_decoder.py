"""An encoder with a decoder: a sound or a text is heard once, and the answer is written token after token.

Source: Vaswani et al., 2017, arXiv:1706.03762; Radford et al., 2022, arXiv:2212.04356 (the language is chosen first).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from edgeopt.errors import EdgeoptError, Note, UnavailableError, UnsupportedError
from edgeopt.executors import SessionOptions
from edgeopt.executors.onnxruntime import EXECUTOR
from edgeopt.executors.onnxruntime.cross_decoder import LOOKS, CrossCache, CrossDecoder, Heard, encoded
from edgeopt.executors.onnxruntime.decoder import LOGITS
from edgeopt.executors.onnxruntime.session import OnnxRuntimeSession
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.features import FeatureMaker
from edgeopt.recipes.inputs.sound_input import window_of
from edgeopt.recipes.texts.encoder_decoder import EncoderDecoderFiles, read_encoder_decoder
from edgeopt.recipes.texts.tokens import read_tokens
from edgeopt.recipes.texts.vocabulary import require_vocabulary
from edgeopt.runtime.bundle import Bundle, is_bundle, read_bundle
from edgeopt.runtime.decoding.generation import AnswerOptions, AnswerWishes, Generation, Writing
from edgeopt.runtime.decoding.language_model import Origin
from edgeopt.runtime.decoding.long import fitted_text
from edgeopt.runtime.decoding.pieces import Pieces
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.runtime.decoding.searching.beam_generation import BeamGeneration
from edgeopt.runtime.decoding.selftest_pair import check_pair
from edgeopt.runtime.decoding.speech.hearing import passages_of
from edgeopt.runtime.decoding.speech.long_sounds import WindowsInTurn, fitted_sound
from edgeopt.runtime.decoding.speech.options import SpeechOptions, SpeechWishes
from edgeopt.runtime.decoding.speech.rules import TokenRules
from edgeopt.runtime.decoding.speech.transcription import Transcription
from edgeopt.runtime.decoding.speech.voice import VoiceDetector
from edgeopt.runtime.opening import opening_of
from edgeopt.runtime.selftest import read_stored
from edgeopt.system.declared.signatures import with_options_of
from edgeopt.system.machine.huge_pages import huge_pages
from edgeopt.system.machine.memory import require_bytes
from edgeopt.system.machine.threads import engine_threads
from edgeopt.system.processes.closing import Closing

_INPUT_RANK = 3


class EncoderDecoder(Closing):
    """One model for any number of threads; each answer has a cache of its own."""

    def __init__(self, files: EncoderDecoderFiles, threads: int = 0, entries: Mapping[str, str] | None = None) -> None:
        """Load encoder and decoder.

        Args:
            files: Of the model.
            threads: Of each engine; 0: one per fast physical core.
            entries: Of each session.

        Raises:
            InvalidFileError: If one of them is damaged.
            UnsupportedError: If they do not fit each other.
            EdgeoptError: If they do not fit into memory.
        """
        self.files, self.threads, self._entries = files, engine_threads(threads), entries or {}
        self._is_closed = False
        beside = [path for file in files.files for path in file.parent.glob(f"{file.name}*") if path.is_file()]
        self.size_bytes = sum(path.stat().st_size for path in beside)
        require_bytes(self.size_bytes, "weights", "close other programs, or take a smaller model")
        self.tokenizer = read_tokens(files.tokenizer)
        options = SessionOptions(threads=self.threads, entries=self._entries)
        with huge_pages():
            self._sessions = {file: EXECUTOR.open(file, options) for file in files.files}
        try:
            self._encoder, self._first, self._following = (
                self._opened(file) for file in (files.encoder, files.first, files.following)
            )
            self.cache = CrossCache(self._following.inputs)
            self._maker = self._feature_maker()
            self.files = replace(files, notes=(*files.notes, *self._require_vocabulary()))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the model."""
        self._is_closed = True
        for session in self._sessions.values():
            session.close()

    @property
    def session(self) -> OnnxRuntimeSession:
        """The session of the decoder that takes one token after the other."""
        return self._following

    @property
    def origin(self) -> Origin:
        """From what it was opened: its folder."""
        folder, notes = self.files.tokenizer.parent, self.files.notes
        return Origin(folder, self.size_bytes, self.threads, notes=notes, entries=self._entries)

    @property
    def context(self) -> int:
        """Tokens that an answer may have, those that it begins with too."""
        return self.files.context

    @property
    def begins_with(self) -> int:
        """Tokens that an answer begins with."""
        return len(self.files.begin) + bool(self.files.languages)

    @property
    def token_bytes(self) -> int:
        """Memory that one token of an answer takes in the cache."""
        return self.cache.token_bytes

    @property
    def hears(self) -> bool:
        """Whether it takes sounds; else texts."""
        return self.files.audio is not None

    @property
    def times_words(self) -> bool:
        """Whether its decoder tells where it looks, by which words get their times."""
        return any(output.name == LOOKS for output in self._following.outputs)

    def forget(self) -> None:
        """Free what is kept of earlier answers: nothing is."""

    def warm_up(self) -> None:
        """Run encoder and decoder once."""
        audio = self.files.audio
        source: Sound | list[int] = [0] if audio is None else Sound(np.zeros(audio.rate_hz, np.float32), audio.rate_hz)
        self.generate(source, AnswerOptions(most_tokens=1)).text()

    def logits(self, source: Sound | Sequence[int], answer: Sequence[int]) -> NDArray[np.float32]:
        """Return (answer's tokens, vocabulary): what it would choose in place of each token of an answer.

        Raises:
            EdgeoptError: As `generate`.
            ValueError: If the answer is longer than the model writes.
        """
        heard = self._heard(self._fed(source, AnswerOptions()))
        decoder = self._decoder(heard)
        result = [decoder.run(self._begin(heard))[-1]]
        result += [decoder.run([token])[-1] for token in answer[:-1]]
        return np.stack(result)

    def require_open(self) -> None:
        """Raise where the model is closed.

        Raises:
            UnavailableError: If it is.
        """
        if self._is_closed:
            raise UnavailableError("the model is closed", remedy="open it again")

    def hear(self, features: NDArray[np.float32]) -> Heard:
        """Return what the encoder gives for the features of a window."""
        return self._heard({self._encoder.inputs[0].name: features[None]})

    def decoder_of(self, heard: Heard) -> CrossDecoder:
        """Return a decoder that holds nothing, and suppresses nothing."""
        return CrossDecoder(self._first.engine, self._following.engine, self.cache, heard, self.files.context)

    @with_options_of(SpeechOptions)
    def transcribe(
        self,
        sound: Sound | Iterator[Sound],
        options: SpeechOptions | None = None,
        *,
        voice: VoiceDetector | None = None,
        **wishes: Unpack[SpeechWishes],
    ) -> Transcription:
        """Return the segments of a sound of any length, with their times, which come as they are done.

        Args:
            sound: A sound; or sounds that follow each other at the model's rate, as they come.
            options: What is asked.
            voice: A runtime of the task `voice_activity`: what it takes for silence is not heard.
            wishes: Fields that differ, as `SpeechOptions.but` takes them.

        Raises:
            UnavailableError: If the model is closed.
            EdgeoptError: If the model hears no sounds, or does not do what is asked.
        """
        self.require_open()
        options = (options or SpeechOptions()).but(**wishes)
        audio, speech = self.files.audio, self.files.speech
        if audio is None or speech is None:
            raise UnsupportedError(
                f"{self.files.name} reads texts, and hears no sound", remedy="pass a text: --prompt TEXT, or generate"
            )
        passages, times = passages_of(sound, audio, options.times, speech, voice)
        return Transcription(self, options, passages, times=times)

    def _begin(self, heard: Heard) -> list[int]:
        begin = list(self.files.begin)
        if self.files.languages:
            begin.insert(1, self._language(heard))
        return begin

    @property
    def reads(self) -> int:
        """Tokens of a text that it reads, beside those around each."""
        before, behind = self.files.around
        return self.files.context - len(before) - len(behind)

    @with_options_of(AnswerOptions, Sampling)
    def generate(
        self, prompt: Sound | str | Sequence[int], asked: AnswerOptions | None = None, **wishes: Unpack[AnswerWishes]
    ) -> Generation:
        """Return the answer to a sound or a text, which is written as it is iterated over.

        Args:
            prompt: A sound, a text, or the tokens of one.
            asked: What the answer may be; of a sound in several windows (`Long.WINDOWS`) the answer to each.
            wishes: Fields that differ, as `AnswerOptions.but` takes them.

        Raises:
            UnavailableError: If the model is closed.
            EdgeoptError: If the model takes the other of them, the text is empty, one of them is too long and nothing
                says what becomes of it, or guesses are asked for.
        """
        self.require_open()
        asked = (asked or AnswerOptions()).but(**wishes)
        if asked.guesses or asked.chunk_tokens:
            raise EdgeoptError("an encoder with a decoder guesses nothing", remedy="leave --guesses out")
        if asked.form:
            raise UnsupportedError(
                "answers of an encoder with a decoder keep to no schema or grammar", remedy="ask a language model"
            )
        if asked.shifts:
            raise UnsupportedError(
                "the answer of an encoder with a decoder ends with its context: nothing before it can be dropped",
                remedy="leave --context-shift out (AnswerOptions.shifts)",
            )
        if self.files.audio is None or not isinstance(prompt, Sound):
            return self._answer(prompt, asked)
        windows = fitted_sound(prompt, self.files.audio, asked.long)
        if len(windows) == 1:
            return self._answer(windows[0], asked)
        return WindowsInTurn(windows, lambda window: self._answer(window, asked))

    def _answer(self, source: Sound | str | Sequence[int], asked: AnswerOptions) -> Generation:
        begun_ns = perf_counter_ns()
        fed = self._fed(source, asked)
        fed_ns = perf_counter_ns()
        heard = self._heard(fed)
        heard_ns = perf_counter_ns()
        begin = self._begin(heard)
        pieces = Pieces(self.tokenizer, asked.stop)
        writing = Writing(
            begin,
            pieces,
            asked,
            end=self.files.end,
            capacity=self.files.context,
            begun_ns=begun_ns,
            tokenize_ns=fed_ns - begun_ns,
        )
        writing.count(encode_ns=heard_ns - fed_ns, heard_rows=heard.rows)
        files = self.files
        configured = files.beams.count if asked.sampling == Sampling() and asked.logprobs is None else 1
        beams = replace(files.beams, count=asked.beams or configured)  # drawn tokens are not searched for
        if beams.count == 1:
            return Generation(self._decoder(heard), writing, asked, lambda *_: None)
        rules, room = TokenRules(files.suppress, files.begin_suppress), files.context - len(begin)
        return BeamGeneration(self.decoder_of(heard), writing, asked, beams, rules, files.end, room)

    def _decoder(self, heard: Heard) -> CrossDecoder:
        files, engines = self.files, (self._first.engine, self._following.engine)
        return CrossDecoder(*engines, self.cache, heard, files.context, (files.suppress, files.begin_suppress))

    def _language(self, heard: Heard) -> int:
        """Return the likeliest token of a language behind the first token."""
        logits = self._decoder(heard).run(self.files.begin[:1])[-1]
        known = np.asarray(self.files.languages)
        return int(known[logits[known].argmax()])

    def _fed(self, source: Sound | str | Sequence[int], asked: AnswerOptions) -> dict[str, NDArray[Any]]:
        """Return the inputs of the encoder."""
        audio = self.files.audio
        if audio is not None:
            if not isinstance(source, Sound):
                raise UnsupportedError(f"{self.files.name} hears sounds, and reads no text", remedy="pass a .wav file")
            assert self._maker is not None
            features = self._maker(window_of(source, audio) * np.float32(audio.scale))
            return {self._encoder.inputs[0].name: features[None]}
        if isinstance(source, Sound):
            raise UnsupportedError(f"{self.files.name} reads texts, and hears no sound", remedy="pass --prompt TEXT")
        tokens = self.tokenizer.encode(source) if isinstance(source, str) else source
        if not tokens:
            raise EdgeoptError("the text is empty", remedy="pass a text")
        before, behind = self.files.around
        ids = np.asarray([[*before, *fitted_text(tokens, self.reads, asked.long), *behind]], np.int64)
        arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        return {spec.name: arrays[spec.name] for spec in self._encoder.inputs if spec.name in arrays}

    def _heard(self, fed: dict[str, NDArray[Any]]) -> Heard:
        given = {output.name for output in self._encoder.outputs}
        crossing = [name for name in self.cache.cross.values() if name in given]
        return encoded(self._encoder.engine, fed, crossing or [self._encoder.outputs[0].name])

    def _opened(self, file: Path) -> OnnxRuntimeSession:
        session = self._sessions[file]
        assert isinstance(session, OnnxRuntimeSession)
        return session

    def _feature_maker(self) -> FeatureMaker | None:
        audio = self.files.audio
        if audio is None:
            return None
        try:
            maker = FeatureMaker(audio)
        except ValueError as error:
            raise UnsupportedError(f"{self.files.encoder}: {error}", remedy="correct [audio]") from error
        spec = self._encoder.inputs[0]
        wanted = [one for one in spec.shape[1:] if isinstance(one, int)]
        if len(spec.shape) != _INPUT_RANK or not set(wanted) <= set(maker.shape):
            text = " bands x ".join(map(str, maker.shape))
            raise UnsupportedError(
                f"{self.files.encoder} takes {spec}, a sound becomes {text} frames",
                remedy="correct [audio] in recipe.toml, or preprocessor_config.json",
            )
        return maker

    def _require_vocabulary(self) -> tuple[Note, ...]:
        """Return a warning where the tokenizer may be another's; raise where it is, as `require_vocabulary`."""
        size = next((output.shape[-1] for output in self._following.outputs if output.name == LOGITS), None)
        if not isinstance(size, int):
            return ()
        files, tokenizer = self.files, self.tokenizer
        named = {
            "begins an answer": files.begin,
            "ends an answer": files.end,
            "stands around each text": (*files.around[0], *files.around[1]),
            "is never chosen": (*files.suppress, *files.begin_suppress),
            "names a language": files.languages,
        }
        return require_vocabulary(str(files.tokenizer), tokenizer.size, size, tokenizer.special.values(), named)


def open_encoder_decoder(
    given: Path | Bundle, threads: int = 0, entries: Mapping[str, str] | None = None
) -> EncoderDecoder:
    """Return the open model of a folder that optimum-cli wrote, or of a bundle, whose numbers are tested.

    Args:
        given: The folder, one that holds a bundle, or a bundle that was read.
        threads: Of each engine; 0: as a bundle was measured, or one per fast physical core.
        entries: Of each session; a bundle has its own.

    Raises:
        InvalidFileError, UnsupportedError, EdgeoptError: As `read_encoder_decoder` and `EncoderDecoder`.
        UnavailableError: If the numbers of a bundle are wrong on this device.
    """
    bundle = given if isinstance(given, Bundle) else read_bundle(given) if is_bundle(given) else None
    if bundle is None:
        assert isinstance(given, Path)
        return EncoderDecoder(read_encoder_decoder(given), threads, entries)
    files = replace(read_encoder_decoder(bundle.folder), name=bundle.recipe.name)
    stored = read_stored(bundle)
    own = opening_of(bundle.artefacts[0]).options
    opened = EncoderDecoder(files, threads or own.threads, own.entries)
    try:
        notes = check_pair(stored, bundle.artefacts[0], opened) if stored else ()
    except BaseException:
        opened.close()
        raise
    opened.files = replace(opened.files, notes=(*opened.files.notes, *notes))
    return opened
