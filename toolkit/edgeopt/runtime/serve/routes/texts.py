"""The routes of a language model: `/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edgeopt.runtime.decoding.generation import AnswerOptions, Piece
from edgeopt.runtime.serve.asking import answers, read_body, require_kind, while_there
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.line import RequestLine
from edgeopt.runtime.serve.reader import PromptReader
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.replies import DONE, Reply, event, finish_reason
from edgeopt.runtime.serve.wanted import Wanted, read_wanted
from edgeopt.runtime.serve.watching.tally import Tally
from edgeopt.runtime.serve.watching.tracing import SpanTracer
from edgeopt.runtime.serve.writers import ServedWriter
from edgeopt.runtime.serve.writing import AnswerWriting, ServedAnswer, Written

STAGES = ("queue", "prefill", "decode")
_LOG = logging.getLogger("edgeopt.serve")
_JSON = "application/json"


W = TypeVar("W", bound=ServedWriter)


class TextRoutes(Generic[W]):
    """Answers requests for texts."""

    def __init__(
        self, model: str, holder: Holder[W], reader: PromptReader, limits: Limits, tally: Tally, tracer: SpanTracer
    ) -> None:
        """Take the model and what it is asked with."""
        self._model, self._holder, self._reader = model, holder, reader
        self._limits, self._tally, self._tracer = limits, tally, tracer
        self._line = RequestLine(limits, tally)
        self._threads = ThreadPoolExecutor(limits.slots, thread_name_prefix="edgeopt-answer")
        self._conversations = ThreadPoolExecutor(1, thread_name_prefix="edgeopt-conversation")
        self._running = WeakSet[AnswerWriting]()

    def routes(self) -> list[Route]:
        """Return what is answered where."""

        async def completion(request: Request) -> Response:
            return await self._answer(request, is_chat=False)

        async def chat(request: Request) -> Response:
            return await self._answer(request, is_chat=True)

        return [
            Route("/v1/completions", answers(completion, self._tally), methods=["POST"]),
            Route("/v1/chat/completions", answers(chat, self._tally), methods=["POST"]),
        ]

    def close(self) -> None:
        """End all answers before their next token."""
        for writing in list(self._running):
            writing.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._conversations.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _begin(self, tokens: Sequence[int], asked: AnswerOptions, priority: int) -> Iterator[ServedAnswer]:
        with self._holder.held() as model, model.generate(tokens, asked, priority) as answer:
            yield answer

    async def _answer(self, request: Request, *, is_chat: bool) -> Response:
        end_s = monotonic() + self._limits.seconds
        require_kind(request, _JSON)
        wanted = read_wanted(await read_body(request, self._limits), self._limits, is_chat=is_chat)
        if wanted.model != self._model:
            text = f"no model named {wanted.model[:100]!r} is here, only {self._model!r}"
            raise RefusedError(404, text, code="model_not_found", param="model")
        tokens = await self._read(wanted, end_s)
        asked = wanted.asked
        if is_chat:
            asked = replace(asked, stop=(*asked.stop, *self._reader.stop))
        queue_ns = await while_there(request, self._line.enter(end_s, wanted.priority))
        writing = AnswerWriting(partial(self._begin, tokens, asked, wanted.priority), end_s)
        self._running.add(writing)
        writing.start(self._threads, self._line.leave)
        task = _Task(self, request, writing, wanted, queue_ns)
        if wanted.streams:
            headers = {"Server-Timing": f"queue;dur={queue_ns / 1e6:.3f}", "Cache-Control": "no-store"}
            headers["X-Accel-Buffering"] = "no"  # nginx passes each event on at once
            return StreamingResponse(task.stream(), media_type="text/event-stream", headers=headers)
        return await task.whole()

    async def _read(self, wanted: Wanted, end_s: float) -> list[int]:
        """Return the tokens of what was asked.

        Conversations are read one after the other in a thread of their own: a template that takes its time holds up
        neither prompts nor what else the server does.

        Raises:
            RefusedError: As `PromptReader.tokens_of`, or 503 where it was not read in time.
        """
        thread = self._conversations if wanted.messages else None
        reading = asyncio.get_running_loop().run_in_executor(thread, self._reader.tokens_of, wanted)
        try:
            async with asyncio.timeout(end_s - monotonic()):
                return await reading
        except TimeoutError as error:
            text = f"the prompt was not read within {self._limits.seconds:g} s"
            raise RefusedError(503, text, code="time_limit") from error

    def settle(self, request: Request, wanted: Wanted, written: Written, queue_ns: int) -> None:
        """Count an answer that is over, and tell its trace."""
        account = written.account
        count, times = len(account.token_at_ns), account.token_at_ns
        decode_ns = times[-1] - times[0] if times else 0
        prefill_ns = times[0] - account.queue_ns if times else account.prefill_ns
        queue_ns += written.opening_ns + account.queue_ns
        stages = dict(zip(STAGES, (queue_ns, prefill_ns, decode_ns), strict=True))
        self._tally.answer(stages, times)
        self._tally.add_tokens(
            {
                "prompt": account.prompt_tokens,
                "reused": account.reused_tokens,
                "computed": account.computed_tokens,
                "output": count,
            }
        )
        self._tracer.record(
            "chat" if wanted.messages else "text_completion",
            request.headers,
            stages,
            {
                "gen_ai.request.max_tokens": wanted.asked.most_tokens,
                "gen_ai.usage.input_tokens": account.prompt_tokens,
                "gen_ai.usage.output_tokens": count,
                "gen_ai.response.finish_reasons": [finish_reason(written)],
            },
        )

    def bytes_of(self, token: int) -> bytes:
        """Return what a token of an answer writes."""
        return self._reader.bytes_of(token)

    @property
    def tally(self) -> Tally:
        """Counts requests."""
        return self._tally


class _Task:
    """One answer between its writing and its client."""

    def __init__(
        self, texts: TextRoutes[Any], request: Request, writing: AnswerWriting, wanted: Wanted, queue_ns: int
    ) -> None:
        self._texts, self._request, self._writing = texts, request, writing
        self._wanted, self._queue_ns = wanted, queue_ns
        self._reply = Reply(wanted.model, bool(wanted.messages), wanted.calls)

    async def whole(self) -> Response:
        try:
            pieces, written = await while_there(self._request, self._gathered())
        except BaseException:
            self._writing.cancel()
            raise
        self._texts.settle(self._request, self._wanted, written, self._queue_ns)
        queue_ns = self._queue_ns + written.opening_ns
        headers = {"Server-Timing": f"queue;dur={queue_ns / 1e6:.3f}"}
        text, logprobs = "".join(piece.text for piece in pieces), self._logprobs(pieces)
        return JSONResponse(self._reply.whole(text, written, self._queue_ns, logprobs), headers=headers)

    def _logprobs(self, pieces: Sequence[Piece], offset: int = 0) -> dict[str, Any] | None:
        return self._reply.logprobs_of(pieces, self._texts.bytes_of, offset)

    async def _gathered(self) -> tuple[list[Piece], Written]:
        pieces = list[Piece]()
        async for news in self._writing.events():
            if isinstance(news, Written):
                return pieces, news
            pieces += news
        raise RuntimeError("an answer ended without its account")

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events of a stream; a client that goes away ends the answer."""
        reply, is_settled, offset = self._reply, False, 0
        try:
            if first := reply.begin():
                yield first
            calls, whole = self._wanted.calls, list[str]()
            if calls and calls.name:
                yield reply.call(calls.named(calls.name, ""))
            async for one in self._writing.events():
                if isinstance(one, Written):
                    is_settled = True
                    self._texts.settle(self._request, self._wanted, one, self._queue_ns)
                    if whole and calls and (call := calls.call_of("".join(whole))):
                        yield reply.call(call)
                    yield reply.end(one, self._queue_ns, tells_usage=self._wanted.tells_usage)
                    continue
                if calls and not calls.name:  # which function it is, the whole answer tells
                    whole += [piece.text for piece in one]
                    continue
                parts = list[bytes]()
                for piece in one:
                    if logprobs := self._logprobs([piece], offset):
                        parts.append(reply.part(piece.text, logprobs))
                    elif piece.text:
                        parts.append(reply.part(piece.text))
                    offset += len(piece.text)
                if parts:
                    yield b"".join(parts)
        except RefusedError as refusal:
            is_settled = True
            self._texts.tally.refuse(refusal.status)
            yield event(refusal.as_json()) + DONE
        except Exception:
            is_settled = True
            _LOG.exception("an answer broke")
            self._texts.tally.lose(is_gone=False)
            broken = RefusedError(500, "the server failed; its log says why", code="internal_error")
            yield event(broken.as_json()) + DONE
        finally:
            self._writing.cancel()  # of one that is over, nothing
            if not is_settled:
                self._texts.tally.lose(is_gone=True)
