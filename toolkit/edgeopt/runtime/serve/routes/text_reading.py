"""Texts that a model of frames reads for one request, whatever it makes of them: vectors, or a number for two."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Any

from starlette.requests import Request

from edgeopt.errors import UnsupportedError
from edgeopt.recipes.inputs.text_input import TextLength
from edgeopt.runtime.serve.asking import while_there
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.refused import RefusedError
from edgeopt.runtime.serve.request_queue import RequestQueue
from edgeopt.runtime.serve.routes.text_models import TextModel
from edgeopt.runtime.serve.watching.tally import Tally
from edgeopt.runtime.serve.watching.tracing import SpanTracer


@dataclass(frozen=True, slots=True)
class TextsToRead:
    """The texts of one request."""

    texts: tuple[str, ...]
    names: tuple[str, ...]
    """The place of each in the request, such as `input[3]`."""
    truncates: bool
    """Whether a text that is too long is cut; else it is refused."""


@dataclass(frozen=True, slots=True)
class TextsRead:
    """The model's answers to the texts of one request."""

    answers: list[Any]
    tokens: int
    cut: list[int]
    """Places of texts that were cut."""
    times_ns: Mapping[str, int]
    """Times from `queue` on, by stage."""

    @property
    def usage(self) -> dict[str, int]:
        """The tokens, as OpenAI's clients read them."""
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}

    @property
    def told(self) -> dict[str, Any]:
        """The times in milliseconds, and what was cut."""
        return {f"{name}_ms": value / 1e6 for name, value in self.times_ns.items()} | {"cut": self.cut}

    @property
    def headers(self) -> dict[str, str]:
        """The header that tells the queue."""
        return {"Server-Timing": f"queue;dur={self.times_ns['queue'] / 1e6:.3f}"}


class TextReading:
    """Has the texts of requests read, in one slot a request."""

    def __init__(self, holder: Holder[TextModel], limits: Limits, tally: Tally, tracer: SpanTracer) -> None:
        """Take the model; `tally` has the stage `queue` and those of the model."""
        self.limits = limits
        self._holder, self._tally, self._tracer, self._queue = holder, tally, tracer, RequestQueue(limits, tally)
        self._threads = ThreadPoolExecutor(limits.slots, thread_name_prefix="edgeopt-texts")

    @property
    def tally(self) -> Tally:
        """Counts requests."""
        return self._tally

    def close(self) -> None:
        """End after the texts that are on their way."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def read(self, request: Request, wanted: TextsToRead, operation: str, end_s: float) -> TextsRead:
        """Return the answers, counted and traced.

        Raises:
            RefusedError: If a text is too long, or they were not read in time.
            GoneError: If the client went away.
        """
        queue_ns = await while_there(request, self._queue.enter(end_s))
        is_over = Event()
        done = asyncio.get_running_loop().run_in_executor(self._threads, self._run, wanted, is_over, queue_ns)
        done.add_done_callback(self._leave)
        try:
            async with asyncio.timeout(end_s - monotonic()):
                read = await while_there(request, _shielded(done))
        except TimeoutError as error:
            late = "the texts were not read within the time limit of this server"
            raise RefusedError(503, late, code="time_limit") from error
        finally:
            is_over.set()
        self._tally.answer(read.times_ns)
        self._tally.add_tokens({"prompt": read.tokens})
        self._tracer.record(operation, request.headers, read.times_ns, {"gen_ai.usage.input_tokens": read.tokens})
        return read

    def _leave(self, done: asyncio.Future[Any]) -> None:
        self._queue.leave()
        if not done.cancelled():
            done.exception()  # heard, whether or not somebody still waits for it

    def _run(self, wanted: TextsToRead, is_over: Event, queue_ns: int) -> TextsRead:
        cut, tokens = list[int](), 0
        with self._holder.held() as model:
            for place, text in enumerate(wanted.texts):
                length = _length_of(model, text, wanted.names[place])
                tokens += length.tokens
                if length.is_cut:
                    cut.append(place)
                if length.is_cut and not wanted.truncates:
                    problem = f"{wanted.names[place]} has more than {length.tokens} tokens, the length of this model"
                    raise RefusedError(400, f"{problem}; truncate: true cuts it", code="context_length_exceeded")
            read = model.read(wanted.texts, is_over.is_set)
        return TextsRead(read.answers, tokens, cut, {"queue": queue_ns, **read.times_ns})


def _length_of(model: TextModel, text: str, name: str) -> TextLength:
    try:
        return model.length_of(text)
    except UnsupportedError as error:  # what was sent, and not the model: it stays open
        raise RefusedError(400, f"{name}: {error.problem}", code="invalid_value", param=name) from error


async def _shielded(done: asyncio.Future[TextsRead]) -> TextsRead:
    return await asyncio.shield(done)


def clean_text(text: str) -> str:
    """Return a text without halves of characters, which JSON can name and UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def require_known(values: Mapping[str, Any], taken: frozenset[str], not_done: Sequence[str]) -> None:
    """Raise where a request has a field that is not taken.

    Raises:
        RefusedError: By name; what other servers do and this one does not is told as such.
    """
    if unknown := sorted(values.keys() - taken):
        text = "not done here" if unknown[0] in not_done else "unknown field"
        raise RefusedError(400, f"{unknown[0][:100]}: {text}", code="unknown_parameter", param=unknown[0][:100])
