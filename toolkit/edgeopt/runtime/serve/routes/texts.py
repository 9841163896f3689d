"""The routes of a language model: `/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edgeopt.errors import MissingDependencyError
from edgeopt.runtime.decoding.batching.prompt_turns import PromptScores, Scoring
from edgeopt.runtime.decoding.generation import AnswerOptions, Piece
from edgeopt.runtime.decoding.grammars import FormError
from edgeopt.runtime.serve.asking import answers, read_body, require_kind, while_there
from edgeopt.runtime.serve.free_calls import CallReader, MadeCall, grammar_of, shown_marks
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.reader import PromptReader
from edgeopt.runtime.serve.refused import RefusedError, unknown_model
from edgeopt.runtime.serve.replies import DONE, Reply, WholeAnswer, event, finish_reason
from edgeopt.runtime.serve.request_queue import RequestQueue
from edgeopt.runtime.serve.text_request import TextRequest, read_text_request
from edgeopt.runtime.serve.watching.tally import Tally
from edgeopt.runtime.serve.watching.tracing import SpanTracer
from edgeopt.runtime.serve.writers import ServedWriter
from edgeopt.runtime.serve.writing import AnswerWriting, Echo, EchoedAnswer, ServedAnswer, Written

STAGES = ("queue", "prefill", "decode")
_LOG = logging.getLogger("edgeopt.serve")
_JSON = "application/json"


W = TypeVar("W", bound=ServedWriter)


def _begun(wanted: TextRequest, generate: Callable[[], ServedAnswer]) -> ServedAnswer:
    """Return an answer that begins.

    Raises:
        RefusedError: If it cannot be kept to its form: the request's fault, for which no model is opened anew.
    """
    try:
        return generate()
    except FormError as error:
        param = "tools" if wanted.calls else "grammar" if wanted.asked.grammar else "response_format"
        raise RefusedError(400, error.problem, code="unsupported_value", param=param) from error
    except MissingDependencyError as error:
        raise RefusedError(501, f"{error.problem}: {error.remedy}", code="not_installed") from error


class TextRoutes(Generic[W]):
    """Answers requests for texts."""

    def __init__(
        self, model: str, holder: Holder[W], reader: PromptReader, limits: Limits, tally: Tally, tracer: SpanTracer
    ) -> None:
        """Take the model and what it is asked with."""
        self._model, self._holder, self._reader = model, holder, reader
        self._limits, self._tally, self._tracer = limits, tally, tracer
        self._queue = RequestQueue(limits, tally)
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
    def _begin(self, choice: AnswerChoice, asked: AnswerOptions) -> Iterator[ServedAnswer]:
        wanted, tokens = choice.wanted, choice.tokens
        with self._holder.held() as model:
            begin = partial(_begun, wanted, partial(model.generate, tokens, asked, wanted.priority))
            if not wanted.echoes:
                with begin() as answer:
                    yield answer
                return
            compute = partial(model.odds, tokens, asked.logprobs or 0)
            odds = None if asked.logprobs is None else partial(self._scored, choice, compute)
            with EchoedAnswer(self._echo(choice, odds), begin if wanted.writes else None) as echoed:
                yield echoed

    def _scored(self, choice: AnswerChoice, compute: Callable[[], Scoring]) -> Scoring:
        """Yield the probabilities of a prompt, and let the next one begin behind them."""
        try:
            yield from choice.scores.told(compute)
        finally:
            with suppress(RuntimeError):  # the server was ended by force: nobody waits
                choice.loop.call_soon_threadsafe(self._queue.scored, choice)

    def _echo(self, choice: AnswerChoice, odds: Callable[[], Scoring] | None) -> Echo:
        """Return how the prompt of a choice is repeated: without what the server puts before it."""
        own, prompt = choice.tokens[len(self._reader.text_before) :], choice.wanted.prompt
        text = prompt if isinstance(prompt, str) else b"".join(map(self.bytes_of, own)).decode("utf-8", "replace")
        count = len(choice.tokens) + self._reader.begins_with
        return Echo(text, own, self.bytes_of, odds, count, is_first=choice.is_first)

    async def _answer(self, request: Request, *, is_chat: bool) -> Response:
        end_s = monotonic() + self._limits.seconds
        require_kind(request, _JSON)
        body, style = await read_body(request, self._limits), self._reader.call_style
        wanted = read_text_request(body, self._limits, is_chat=is_chat, style=style, sees=self._reader.sees)
        if wanted.model != self._model:
            raise unknown_model(wanted.model, self._model)
        single = wanted.choices()
        read = [await self._read(each, end_s) for each in single[:: wanted.each]]  # a prompt once
        scores = [PromptScores() for _ in read]
        choices = list[AnswerChoice]()
        for index, each in enumerate(single):
            prompt, number = divmod(index, wanted.each)
            choices.append(AnswerChoice(index, each, read[prompt], scores[prompt], is_first=number == 0))
        task = _Task(self, request, wanted, choices, end_s)
        first_ns = await while_there(request, self.enter(choices[0], end_s))
        task.begin()
        if wanted.streams:
            headers = {"Server-Timing": f"queue;dur={first_ns / 1e6:.3f}", "Cache-Control": "no-store"}
            headers["X-Accel-Buffering"] = "no"  # nginx passes each event on at once
            return StreamingResponse(task.stream(), media_type="text/event-stream", headers=headers)
        return await task.whole()

    async def enter(self, choice: AnswerChoice, end_s: float) -> int:
        """Wait until an answer has a slot, begin to write it, and return for how many nanoseconds it waited.

        Raises:
            RefusedError: As `RequestQueue.enter`.
        """
        wanted = choice.wanted
        asked = wanted.asked
        if wanted.messages:
            asked = replace(asked, stop=(*asked.stop, *self._reader.stop))
        if wanted.calls and (style := wanted.calls.style):
            grammar = grammar_of(wanted.calls, style, self._reader.special)
            asked = replace(asked, grammar=grammar, shows=shown_marks(style))
        is_scored = wanted.echoes and asked.logprobs is not None
        choice.queue_ns = await self._queue.enter(end_s, wanted.priority, choice if is_scored else None)
        writing = AnswerWriting(partial(self._begin, choice, asked), end_s)
        self._running.add(writing)

        def leave() -> None:
            self._queue.scored(choice)
            self._queue.leave()

        writing.start(self._threads, leave)
        choice.writing = writing
        return choice.queue_ns

    async def _read(self, wanted: TextRequest, end_s: float) -> Sequence[int]:
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

    def settle(self, request: Request, wanted: TextRequest, written: Written, queue_ns: int) -> None:
        """Count an answer that is over, and tell its trace."""
        account = written.account
        count, times = len(account.token_at_ns), account.token_at_ns
        decode_ns = times[-1] - times[0] if times else 0
        prefill_ns = times[0] - account.queue_ns if times else account.prefill_ns
        queue_ns += written.opening_ns + account.queue_ns
        stages = dict(zip(STAGES, (queue_ns, prefill_ns, decode_ns), strict=True))
        self._tally.answer(stages, account.came_at_ns)
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

    def look_ahead(self, choice: AnswerChoice) -> None:
        """Let the model compute what the next prompt of a conversation begins with, while nobody asks."""
        wanted = choice.wanted
        if not (self._limits.looks_ahead and wanted.messages and not wanted.calls and self._queue.is_quiet):
            return
        with suppress(RuntimeError):  # the server ends
            self._conversations.submit(self._expect, wanted, "".join(choice.said), choice.tokens)

    def _expect(self, wanted: TextRequest, answer: str, prompt: Sequence[int]) -> None:
        tokens = self._reader.next_start(wanted, answer)
        if not tokens:
            return
        with self._holder.held_if_loaded() as model:
            if model is not None:
                model.expect(tokens, prompt)

    def bytes_of(self, token: int) -> bytes:
        """Return what a token of an answer writes."""
        return self._reader.bytes_of(token)

    @property
    def tally(self) -> Tally:
        """Counts requests."""
        return self._tally


@dataclass
class AnswerChoice:
    """One answer of a request, before and while it is written."""

    index: int
    wanted: TextRequest
    """The request as if it asked for this answer alone."""
    tokens: Sequence[int]
    """Tokens of its prompt."""
    scores: PromptScores
    """Scores of its prompt, shared with the other answers to it."""
    is_first: bool
    """Whether it is the first answer to its prompt."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    queue_ns: int = 0
    writing: AnswerWriting | None = None
    """None: it has no slot yet."""
    pieces: list[Piece] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """Texts of the pieces so far, of a conversation."""
    written: Written | None = None
    """How it ended."""
    reader: CallReader | None = None
    """Parts it into text and calls, in a stream whose model chooses whether to call."""

    def require_written(self) -> Written:
        """Return how it ended.

        Raises:
            RuntimeError: If it has not.
        """
        if self.written is None:
            raise RuntimeError("an answer ended without its account")
        return self.written


News = tuple[AnswerChoice, "list[Piece] | Written | BaseException"]


class _Task:
    """The answers of one request between their writing and their client."""

    def __init__(
        self,
        texts: TextRoutes[Any],
        request: Request,
        wanted: TextRequest,
        choices: Sequence[AnswerChoice],
        end_s: float,
    ) -> None:
        self._texts, self._request, self._wanted = texts, request, wanted
        self._choices, self._end_s = choices, end_s
        self._reply = Reply(wanted.model, bool(wanted.messages), wanted.calls)
        self._news = asyncio.Queue[News]()
        self._feeding: asyncio.Task[None] | None = None
        self._pumps = set[asyncio.Task[None]]()

    def begin(self) -> None:
        """Begin to hear the first answer, which has its slot, and to ask slots for the others one after the other."""
        self._feeding = asyncio.ensure_future(self._feed())

    async def _feed(self) -> None:
        for choice in self._choices:
            try:
                if choice.writing is None:
                    await self._texts.enter(choice, self._end_s)
            except BaseException as error:
                self._news.put_nowait((choice, error))
                return
            pump = asyncio.ensure_future(self._pump(choice))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, choice: AnswerChoice) -> None:
        assert choice.writing
        try:
            async for news in choice.writing.events():
                self._news.put_nowait((choice, news))
        except BaseException as error:
            self._news.put_nowait((choice, error))

    async def _heard(self) -> AsyncIterator[tuple[AnswerChoice, list[Piece] | Written]]:
        """Yield what comes of all answers until the last is over.

        Raises:
            RefusedError: If one has no slot in time, or its prompt does not fit.
            Exception: What broke an answer.
        """
        left = len(self._choices)
        while left:
            choice, news = await self._news.get()
            if isinstance(news, BaseException):
                raise news
            if isinstance(news, Written):
                left -= 1
                choice.written = news
                self._texts.settle(self._request, choice.wanted, news, choice.queue_ns)
                self._texts.look_ahead(choice)
            elif choice.wanted.messages:
                choice.said += [piece.text for piece in news]
            yield choice, news

    def _cancel(self) -> None:
        """End what is on its way; of answers that are over, nothing."""
        if self._feeding:
            self._feeding.cancel()
        for pump in self._pumps:
            pump.cancel()
        for choice in self._choices:
            if choice.writing:
                choice.writing.cancel()

    async def whole(self) -> Response:
        try:
            await while_there(self._request, self._gather())
        finally:
            self._cancel()
        answers = [self._answer(choice) for choice in self._choices]
        queue_ns = answers[0].queue_ns + answers[0].written.opening_ns
        headers = {"Server-Timing": f"queue;dur={queue_ns / 1e6:.3f}"}
        return JSONResponse(self._reply.whole(answers, each=self._wanted.each), headers=headers)

    async def _gather(self) -> None:
        async for choice, news in self._heard():
            if not isinstance(news, Written):
                choice.pieces += news

    def _answer(self, choice: AnswerChoice) -> WholeAnswer:
        text, logprobs = "".join(piece.text for piece in choice.pieces), self._logprobs(choice.pieces)
        return WholeAnswer(text, choice.require_written(), choice.queue_ns, logprobs)

    def _logprobs(self, pieces: Sequence[Piece], offset: int = 0) -> dict[str, Any] | None:
        return self._reply.logprobs_of(pieces, self._texts.bytes_of, offset)

    def _parted(
        self, choice: AnswerChoice, parts: Sequence[str | MadeCall], logprobs: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return the events of what an answer says and calls; a token's probabilities come whether it shows or not."""
        calls, reader, events = self._wanted.calls, choice.reader, list[bytes]()
        assert calls
        assert reader
        number = reader.made - sum(isinstance(part, MadeCall) for part in parts)
        for part in parts:
            if isinstance(part, str):
                events.append(self._reply.part(choice.index, part, logprobs))
                logprobs = None
                continue
            events.append(self._reply.call(choice.index, calls.named(part.name, part.arguments), number))
            number += 1
        return b"".join(events) + (self._reply.part(choice.index, "", logprobs) if logprobs else b"")

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the events of a stream; a client that goes away ends the answers."""
        reply, calls, is_settled = self._reply, self._wanted.calls, False
        offsets = dict.fromkeys(range(len(self._choices)), 0)
        try:
            for choice in self._choices:
                if first := reply.begin(choice.index):
                    yield first
                if calls and calls.name:
                    yield reply.call(choice.index, calls.named(calls.name, ""))
            async for choice, news in self._heard():
                if isinstance(news, Written):
                    is_settled = all(each.written for each in self._choices)
                    if choice.reader and (rest := self._parted(choice, choice.reader.end())):
                        yield rest
                    if choice.pieces and calls and (call := calls.call_of("".join(p.text for p in choice.pieces))):
                        yield reply.call(choice.index, call)
                    has_called = bool(choice.reader and choice.reader.made)
                    yield reply.end(choice.index, news, choice.queue_ns, calls=has_called)
                    continue
                if calls and calls.style:
                    choice.reader = choice.reader or CallReader(calls.style)
                    add, told = choice.reader.add, self._logprobs
                    if shown := b"".join(self._parted(choice, add(each.text), told([each])) for each in news):
                        yield shown
                    continue
                if calls and not calls.name:  # which function it is, the whole answer tells
                    choice.pieces += news
                    continue
                parts = list[bytes]()
                for piece in news:
                    if logprobs := self._logprobs([piece], offsets[choice.index]):
                        parts.append(reply.part(choice.index, piece.text, logprobs))
                    elif piece.text:
                        parts.append(reply.part(choice.index, piece.text))
                    offsets[choice.index] += len(piece.text)
                if parts:
                    yield b"".join(parts)
            written = [choice.require_written() for choice in self._choices]
            yield reply.close(written, each=self._wanted.each, tells_usage=self._wanted.tells_usage)
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
            self._cancel()
            if not is_settled:
                self._texts.tally.lose(is_gone=True)
