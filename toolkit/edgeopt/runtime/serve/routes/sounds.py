"""The route of a model that hears: `/v1/audio/transcriptions` takes a WAV in a form and gives its text.

Source: OpenAI API reference, "Create transcription".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import ceil
from time import monotonic
from typing import Any, Final
from weakref import WeakSet

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from edgeopt.errors import InvalidFileError, UnsupportedError
from edgeopt.graph.sound import Sound
from edgeopt.recipes.inputs.resampling import resampled
from edgeopt.recipes.inputs.wav_files import decode_wav
from edgeopt.runtime.decoding.encoder_decoder import EncoderDecoder
from edgeopt.runtime.decoding.generation import AnswerOptions, Long
from edgeopt.runtime.decoding.sampling import Sampling
from edgeopt.runtime.serve.asking import answers, read_body, require_kind, while_there
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.line import RequestLine
from edgeopt.runtime.serve.refused import RefusedError, unknown_model, wrong
from edgeopt.runtime.serve.routes.forms import FORM, read_form
from edgeopt.runtime.serve.watching.tally import Tally
from edgeopt.runtime.serve.watching.tracing import SpanTracer
from edgeopt.runtime.serve.writing import AnswerWriting, ServedAnswer, Written

STAGES = ("queue", "listen", "decode")
"""`listen` is all before the first token: features, encoder, first run of the decoder."""
_KNOWN: Final = ("model", "response_format", "temperature", "stream")
_FORMS = ("json", "text")
_MOST_TEMPERATURE = 1.0
_ALL_TOKENS = 1 << 30
"""All tokens of each window: its end or the model's context ends the answer."""


class Sounds:
    """Answers requests with a sound; one beyond a window is heard in windows, one after the other."""

    def __init__(
        self,
        model: str,
        holder: Holder[EncoderDecoder],
        rate_hz: int,
        limits: Limits,
        tally: Tally,
        tracer: SpanTracer,
    ) -> None:
        """Take the model, which hears sounds of a rate; `tally` has `STAGES`."""
        self._model, self._holder, self._rate_hz, self._limits = model, holder, rate_hz, limits
        self._tally, self._tracer, self._line = tally, tracer, RequestLine(limits, tally)
        self._threads = ThreadPoolExecutor(limits.slots, thread_name_prefix="edgeopt-sound")
        self._running = WeakSet[AnswerWriting]()

    def routes(self) -> list[Route]:
        """Return what is answered where."""
        return [Route("/v1/audio/transcriptions", answers(self._answer, self._tally), methods=["POST"])]

    def close(self) -> None:
        """End all answers before their next token."""
        for writing in list(self._running):
            writing.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _begin(self, sound: Sound, asked: AnswerOptions) -> Iterator[ServedAnswer]:
        with self._holder.held() as model, model.generate(sound, asked) as answer:
            yield answer

    async def _answer(self, request: Request) -> Response:
        end_s = monotonic() + self._limits.seconds
        require_kind(request, FORM)
        data, fields = await read_form(request, await read_body(request, self._limits), "sound")
        form, asked = self._wanted(fields)
        sound = await asyncio.to_thread(self._read, data)
        queue_ns = await while_there(request, self._line.enter(end_s))
        writing = AnswerWriting(partial(self._begin, sound, asked), end_s)
        self._running.add(writing)
        writing.start(self._threads, self._line.leave)
        try:
            text, written = await while_there(request, _gathered(writing))
        except BaseException:
            writing.cancel()
            raise
        times = self._settle(request, written, queue_ns)
        headers = {"Server-Timing": f"queue;dur={times['queue_ms']:.3f}"}
        if form == "text":
            return PlainTextResponse(f"{text}\n", headers=headers)
        values = times | {"windows": written.account.windows, "ended_by": written.reason}
        usage = {"type": "duration", "seconds": ceil(sound.seconds)}
        return JSONResponse({"text": text, "usage": usage, "edgeopt": values}, headers=headers)

    def _read(self, data: bytes) -> Sound:
        """Return the sound of a file.

        Raises:
            RefusedError: If it is no WAV, or of another rate and nothing resamples: the sound's fault, no model's.
        """
        try:
            sound = decode_wav(data, "the file")
            resampled(replace(sound, samples=sound.samples[:1]), self._rate_hz)  # all of it in a slot: it may be large
            return sound
        except InvalidFileError as error:
            raise RefusedError(400, f"{error.problem}: send a WAV", code="invalid_sound", param="file") from error
        except UnsupportedError as error:
            text = f"{error.problem} on the server: send a WAV of {self._rate_hz} Hz"
            raise RefusedError(400, text, code="invalid_sound", param="file") from error

    def _wanted(self, fields: Mapping[str, str]) -> tuple[str, AnswerOptions]:
        """Return the form of the reply, and what is asked of the model.

        Raises:
            RefusedError: If a field holds what it must not, or asks for what is not done here.
        """
        if unknown := next((name for name in fields if name not in _KNOWN), None):
            raise wrong(unknown[:60], "this server does not do that; leave it out")
        if fields.get("model", self._model) != self._model:
            raise unknown_model(fields["model"], self._model)
        if fields.get("stream", "false").lower() not in ("false", "0"):
            raise wrong("stream", "a transcription comes whole; leave it out")
        form = fields.get("response_format", _FORMS[0])
        if form not in _FORMS:
            raise wrong("response_format", f"send {' or '.join(_FORMS)}: no times are written")
        try:
            temperature = float(fields.get("temperature", "0"))
        except ValueError:
            temperature = -1.0
        if not 0 <= temperature <= _MOST_TEMPERATURE:
            raise wrong("temperature", f"send a number from 0 to {_MOST_TEMPERATURE:g}")
        most = self._limits.answer_tokens or _ALL_TOKENS
        return form, AnswerOptions(most_tokens=most, sampling=Sampling(temperature=temperature), long=Long.WINDOWS)

    def _settle(self, request: Request, written: Written, queue_ns: int) -> dict[str, float]:
        """Count an answer that is over, tell its trace, and return its times."""
        account = written.account
        times = account.token_at_ns
        listen_ns, decode_ns = (times[0], times[-1] - times[0]) if times else (account.encode_ns, 0)
        stages = dict(zip(STAGES, (queue_ns + written.opening_ns, listen_ns, decode_ns), strict=True))
        self._tally.answer(stages, times)
        self._tally.add_tokens({"output": len(times), "computed": account.computed_tokens})
        self._tracer.record("transcription", request.headers, stages, {"gen_ai.usage.output_tokens": len(times)})
        return {f"{name}_ms": value / 1e6 for name, value in stages.items()}


async def _gathered(writing: AnswerWriting) -> tuple[str, Written]:
    said = list[str]()
    async for event in writing.events():
        if not isinstance(event, Written):
            said += [piece.text for piece in event]
            continue
        if event.reason == "time":  # half a transcription would pass for a whole one
            late = "the sound was not heard to its end within the time limit of this server"
            raise RefusedError(503, late, code="time_limit")
        return "".join(said).strip(), event
    raise RuntimeError("an answer ended without its account")


class Translations:
    """An encoder with a decoder that reads texts, as the routes of texts ask for answers."""

    def __init__(self, model: EncoderDecoder) -> None:
        """Take a model, which is closed with it."""
        self.model = model

    def generate(self, prompt: Any, asked: AnswerOptions, priority: int) -> ServedAnswer:
        """Return the answer to the tokens of a text; answers run beside each other, so that no priority counts."""
        return self.model.generate(prompt, replace(asked, guesses=0))

    def expect(self, tokens: Any, behind: Any) -> None:
        """Do nothing: texts are no conversation."""

    def close(self) -> None:
        """Free it."""
        self.model.close()
