"""The routes of a model that hears: a WAV in a form becomes a text, segments or subtitles, whole or as they are done.

Source: OpenAI API reference, "Create transcription" and "Create translation".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import Any
from weakref import WeakSet

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from edgeopt.errors import EdgeoptError, InvalidFileError, UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.resampling import resampled
from edgeopt.recipes.inputs.wav_files import decode_wav
from edgeopt.recipes.texts.encoder_decoder import EncoderDecoderFiles
from edgeopt.runtime.decoding.batching.prompt_turns import Scoring
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import Account, AnswerOptions, Piece
from edgeopt.runtime.decoding.speech.segments import SpeechSegment
from edgeopt.runtime.decoding.speech.transcription import Transcription
from edgeopt.runtime.decoding.speech.voice import VoiceDetector
from edgeopt.runtime.serve.asking import answers, read_body, require_kind, while_there
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import RefusedError, wrong
from edgeopt.runtime.serve.replies import DONE, event
from edgeopt.runtime.serve.request_queue import RequestQueue
from edgeopt.runtime.serve.routes.forms import FORM, read_form
from edgeopt.runtime.serve.routes.speech_replies import HeardSpeech, delta, done, reply_of
from edgeopt.runtime.serve.routes.speech_request import GRANULARITIES, SpeechRequest, read_speech_request
from edgeopt.runtime.serve.watching.tally import Tally
from edgeopt.runtime.serve.watching.tracing import SpanTracer
from edgeopt.runtime.serve.writing import AnswerWriting, ServedAnswer, Written

STAGES = ("queue", "listen", "decode")
"""`listen` is all before the first token: features, encoder, first run of the decoder."""
_LOG = logging.getLogger("edgeopt.serve")
_SLOWEST_HZ = 8000
"""A body holds no more seconds than at this rate in bytes: at a lower one it would become many times as large when it
is resampled."""
_LATE = "the sound was not heard to its end within the time limit of this server"


@dataclass(frozen=True, slots=True)
class SegmentPiece(Piece):
    """A segment on its way to a client."""

    segment: SpeechSegment | None = None


class _OverError(Exception):
    """Nobody waits for the sound any more."""


class _VoiceOfSound:
    """A detector in front of one sound: it ends with its request, and its faults are not those of the speech model."""

    def __init__(self, voice: VoiceDetector) -> None:
        self._voice, self.bundle, self.is_over = voice, voice.bundle, False

    def predict(self, frame: Sound, *, stream: Any = 0) -> Any:
        if self.is_over:
            raise _OverError
        with self._own_faults():
            return self._voice.predict(frame, stream=stream)

    def reset(self, stream: Any = None) -> None:
        with self._own_faults():
            self._voice.reset(stream)

    @contextmanager
    def _own_faults(self) -> Iterator[None]:
        """Refuse where the detector breaks, for which the speech model must not be opened anew."""
        try:
            yield
        except EdgeoptError as error:
            _LOG.exception("the model of voice activity broke")
            text = f"the model of voice activity of this server failed: {error.problem}"
            raise RefusedError(503, text, code="voice_activity_failed") from error


class _ServedTranscription:
    """A transcription as the server writes any answer: a piece a segment."""

    def __init__(self, transcription: Transcription, voice: _VoiceOfSound | None) -> None:
        self._transcription, self._voice = transcription, voice

    @property
    def account(self) -> Account:
        return self._transcription.account

    @property
    def language(self) -> str:
        return self._transcription.language

    def __enter__(self) -> _ServedTranscription:
        return self

    def __exit__(self, *_: object) -> None:
        self._transcription.close()

    def __iter__(self) -> Iterator[Piece]:
        with suppress(_OverError):  # its account tells that it was cancelled
            for segment in self._transcription:
                yield SegmentPiece(segment.tokens[-1], segment.text, 0, segment=segment)

    def cancel(self) -> None:
        if self._voice is not None:
            self._voice.is_over = True
        self._transcription.cancel()


class Sounds:
    """Answers requests with a sound of any length."""

    def __init__(
        self,
        model: str,
        holder: Holder[EncoderDecoder],
        files: EncoderDecoderFiles,
        limits: Limits,
        tally: Tally,
        tracer: SpanTracer,
        voice: VoiceDetector | None = None,
    ) -> None:
        """Take the model with its configurations; `tally` has `STAGES`, and `voice` stands before it all the time."""
        assert files.audio
        assert files.speech
        self._model, self._holder, self._files, self._limits = model, holder, files, limits
        self._voice = voice
        self._rate_hz, self._translates = files.audio.rate_hz, bool(files.speech.tasks)
        self._tally, self._tracer, self._queue = tally, tracer, RequestQueue(limits, tally)
        self._threads = ThreadPoolExecutor(limits.slots, thread_name_prefix="edgeopt-sound")
        self._running = WeakSet[AnswerWriting]()

    def routes(self) -> list[Route]:
        """Return what is answered where."""

        async def transcription(request: Request) -> Response:
            return await self._answer(request, translates=False)

        async def translation(request: Request) -> Response:
            return await self._answer(request, translates=True)

        return [
            Route("/v1/audio/transcriptions", answers(transcription, self._tally), methods=["POST"]),
            Route("/v1/audio/translations", answers(translation, self._tally), methods=["POST"]),
        ]

    def close(self) -> None:
        """End all answers before their next token."""
        for writing in list(self._running):
            writing.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _answer(self, request: Request, *, translates: bool) -> Response:
        end_s = monotonic() + self._limits.seconds
        require_kind(request, FORM)
        data, fields = await read_form(request, await read_body(request, self._limits), "sound")
        read = partial(read_speech_request, translates=translates, skips_silence=self._voice is not None)
        wanted = read(fields, self._model, self._files, self._limits)
        sound = await asyncio.to_thread(self._read, data)
        queue_ns = await while_there(request, self._queue.enter(end_s))
        hearing = _Hearing(self._holder, wanted, sound, end_s, self._voice)
        self._running.add(hearing.writing)
        hearing.writing.start(self._threads, self._queue.leave)
        headers = {"Server-Timing": f"queue;dur={queue_ns / 1e6:.3f}"}
        if wanted.streams:
            headers |= {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx passes each event on at once
            events = self._stream(request, hearing, queue_ns)
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        try:
            written = await while_there(request, hearing.whole())
        except BaseException:
            hearing.writing.cancel()
            raise
        return reply_of(hearing.heard(self._settle(request, written, queue_ns)), wanted, headers)

    async def _stream(self, request: Request, hearing: _Hearing, queue_ns: int) -> AsyncIterator[bytes]:
        """Yield the events of a stream; a client that goes away ends the transcription."""
        is_settled = False
        try:
            async for news in hearing.news():
                if isinstance(news, Written):
                    is_settled = True
                    yield done(hearing.heard(self._settle(request, news, queue_ns))) + DONE
                else:
                    yield b"".join(map(delta, news))
        except RefusedError as refusal:
            is_settled = True
            self._tally.refuse(refusal.status)
            yield event(refusal.as_json()) + DONE
        except Exception:
            is_settled = True
            _LOG.exception("an answer broke")
            self._tally.lose(is_gone=False)
            broken = RefusedError(500, "the server failed; its log says why", code="internal_error")
            yield event(broken.as_json()) + DONE
        finally:
            hearing.writing.cancel()
            if not is_settled:
                self._tally.lose(is_gone=True)

    def _read(self, data: bytes) -> Sound:
        """Return the sound of a file.

        Raises:
            RefusedError: If it is no WAV, longer than its bytes tell, or of another rate and nothing resamples: the
                sound's fault, no model's.
        """
        try:
            sound = decode_wav(data, "the file")
            if sound.seconds > (most_s := self._limits.body_bytes / _SLOWEST_HZ):
                text = f"the sound has {sound.seconds:.0f} s, more than {most_s:.0f} s, the limit of this server"
                raise RefusedError(413, text, code="sound_too_long", param="file")
            rates = {self._rate_hz} | ({self._voice.bundle.recipe.audio.rate_hz} if self._voice else set())
            for rate_hz in rates:  # all of it in a slot: it may be large
                resampled(replace(sound, samples=sound.samples[:1]), rate_hz)
            return sound
        except InvalidFileError as error:
            raise RefusedError(400, f"{error.problem}: send a WAV", code="invalid_sound", param="file") from error
        except UnsupportedError as error:
            text = f"{error.problem} on the server: send a WAV of {self._rate_hz} Hz"
            raise RefusedError(400, text, code="invalid_sound", param="file") from error

    def _settle(self, request: Request, written: Written, queue_ns: int) -> dict[str, Any]:
        """Count an answer that is over, tell its trace, and return its figures."""
        account = written.account
        times = account.token_at_ns
        listen_ns, decode_ns = (times[0], times[-1] - times[0]) if times else (account.encode_ns, 0)
        stages = dict(zip(STAGES, (queue_ns + written.opening_ns, listen_ns, decode_ns), strict=True))
        self._tally.answer(stages, account.came_at_ns)
        self._tally.add_tokens({"output": len(times), "computed": account.computed_tokens})
        self._tracer.record("transcription", request.headers, stages, {"gen_ai.usage.output_tokens": len(times)})
        figures = {f"{name}_ms": value / 1e6 for name, value in stages.items()}
        return figures | {"windows": account.windows, "ended_by": written.reason}


class _Hearing:
    """One request between the model and its client."""

    def __init__(
        self,
        holder: Holder[EncoderDecoder],
        wanted: SpeechRequest,
        sound: Sound,
        end_s: float,
        voice: VoiceDetector | None,
    ) -> None:
        self._holder, self._wanted, self._sound, self._voice = holder, wanted, sound, voice
        self._segments, self._language = list[SpeechSegment](), ""
        self.writing = AnswerWriting(partial(self._begin), end_s)

    @contextmanager
    def _begin(self) -> Iterator[ServedAnswer]:
        voice = None if self._voice is None else _VoiceOfSound(self._voice)
        with self._holder.held() as model:
            try:
                transcription = model.transcribe(self._sound, self._wanted.options, voice=voice)
            except EdgeoptError as error:  # what was asked, and not the model: it stays open
                is_of_words = self._wanted.options.words and not model.times_words
                refusal = wrong(GRANULARITIES if is_of_words else "prompt", f"{error.problem}; {error.remedy}")
                raise refusal from error
            with _ServedTranscription(transcription, voice) as answer:
                yield answer
            self._language = answer.language

    async def news(self) -> AsyncIterator[list[SpeechSegment] | Written]:
        """Yield segments as they come, and at last how it ended.

        Raises:
            RefusedError: If it was not heard to its end in time: half of it would pass for the whole.
        """
        async for pieces in self.writing.events():
            if isinstance(pieces, Written):
                if pieces.reason == "time":
                    raise RefusedError(503, _LATE, code="time_limit")
                yield pieces
                continue
            segments = [piece.segment for piece in pieces if isinstance(piece, SegmentPiece) and piece.segment]
            self._segments += segments
            yield segments

    async def whole(self) -> Written:
        """Return how it ended."""
        async for news in self.news():
            if isinstance(news, Written):
                return news
        raise RuntimeError("an answer ended without its account")

    def heard(self, figures: dict[str, Any]) -> HeardSpeech:
        """Return all that was said."""
        return HeardSpeech(self._segments, self._language, self._sound.seconds, figures)


class Translations:
    """An encoder with a decoder that reads texts, as the routes of texts ask for answers."""

    def __init__(self, model: EncoderDecoder) -> None:
        """Take a model, which is closed with it."""
        self.model = model

    def generate(self, prompt: Any, asked: AnswerOptions, priority: int) -> ServedAnswer:
        """Return the answer to the tokens of a text; answers run beside each other, so that no priority counts."""
        return self.model.generate(prompt, replace(asked, guesses=0, beams=0))

    def odds(self, prompt: Any, count: int) -> Scoring:
        """Refuse: its encoder reads a prompt at once."""
        text = "echo: tokens of the prompt have no logprobs with an encoder: leave echo or logprobs out"
        raise RefusedError(400, text, code="unsupported_value", param="echo")

    def expect(self, tokens: Any, behind: Any) -> None:
        """Do nothing: texts are no conversation."""

    def close(self) -> None:
        """Free it."""
        self.model.close()
