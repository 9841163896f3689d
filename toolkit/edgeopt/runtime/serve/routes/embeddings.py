"""The route of a model that embeds texts: `/v1/embeddings`.

Source: OpenAI API reference, `POST /v1/embeddings`; `truncate` as Hugging Face's text-embeddings-inference has it.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgeopt.runtime.runtime import Runtime
from edgeopt.runtime.serve.asking import answers, read_body, require_kind, while_there
from edgeopt.runtime.serve.holder import Holder
from edgeopt.runtime.serve.limits import Limits
from edgeopt.runtime.serve.line import RequestLine
from edgeopt.runtime.serve.refused import RefusedError, unknown_model, wrong
from edgeopt.runtime.serve.wanted import read_object
from edgeopt.runtime.serve.watching.tally import Tally
from edgeopt.runtime.serve.watching.tracing import SpanTracer
from edgeopt.tasks.embedding import Embedder, Embedding

_MOST_TEXTS: Final = 2048
"""OpenAI's limit of a request."""
_FORMATS: Final = ("float", "base64")
_TAKEN: Final = frozenset({"model", "input", "encoding_format", "truncate", "user"})


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """The texts of a request, and how their vectors are written."""

    texts: tuple[str, ...]
    is_packed: bool
    """Whether a vector is base64 of its float32 in place of a list of numbers."""
    truncates: bool
    """Whether a text that is too long is cut; else it is refused."""


@dataclass(frozen=True, slots=True)
class _Embedded:
    vectors: list[NDArray[np.float32]]
    tokens: int
    cut: list[int]
    """Places of texts that were cut."""
    times_ns: Mapping[str, int]


class EmbeddingRoute:
    """Answers requests with texts; those of one request are embedded one after the other, beside other requests."""

    def __init__(self, model: str, holder: Holder[Runtime], limits: Limits, tally: Tally, tracer: SpanTracer) -> None:
        """Take the model; `tally` has the stage `queue` and those of the runtime."""
        self._model, self._holder, self._limits = model, holder, limits
        self._tally, self._tracer, self._line = tally, tracer, RequestLine(limits, tally)
        self._threads = ThreadPoolExecutor(limits.slots, thread_name_prefix="edgeopt-embedding")

    def routes(self) -> list[Route]:
        """Return what is answered where."""
        return [Route("/v1/embeddings", answers(self._answer, self._tally), methods=["POST"])]

    def close(self) -> None:
        """End after the texts that are on their way."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _answer(self, request: Request) -> Response:
        end_s = monotonic() + self._limits.seconds
        require_kind(request, "application/json")
        values = read_object(await read_body(request, self._limits))
        wanted = read_embedding_request(values, self._model)
        queue_ns = await while_there(request, self._line.enter(end_s))
        is_over = Event()
        done = asyncio.get_running_loop().run_in_executor(self._threads, self._run, wanted, is_over)
        done.add_done_callback(self._leave)
        try:
            async with asyncio.timeout(end_s - monotonic()):
                embedded = await while_there(request, _shielded(done))
        except TimeoutError as error:
            late = "the texts were not embedded within the time limit of this server"
            raise RefusedError(503, late, code="time_limit") from error
        finally:
            is_over.set()
        times_ns = {"queue": queue_ns, **embedded.times_ns}
        self._tally.answer(times_ns)
        self._tally.add_tokens({"prompt": embedded.tokens})
        self._tracer.record("embeddings", request.headers, times_ns, {"gen_ai.usage.input_tokens": embedded.tokens})
        times = {f"{name}_ms": value / 1e6 for name, value in times_ns.items()}
        reply = {
            "object": "list",
            "model": self._model,
            "data": [
                {"object": "embedding", "index": place, "embedding": _written(vector, is_packed=wanted.is_packed)}
                for place, vector in enumerate(embedded.vectors)
            ],
            "usage": {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens},
            "edgeopt": times | {"cut": embedded.cut},
        }
        return JSONResponse(reply, headers={"Server-Timing": f"queue;dur={queue_ns / 1e6:.3f}"})

    def _leave(self, done: asyncio.Future[Any]) -> None:
        self._line.leave()
        if not done.cancelled():
            done.exception()  # heard, whether or not somebody still waits for it

    def _run(self, wanted: EmbeddingRequest, is_over: Event) -> _Embedded:
        vectors, cut, times_ns, tokens = list[NDArray[np.float32]](), list[int](), Counter[str](), 0
        with self._holder.held() as runtime:
            task = runtime.task
            assert isinstance(task, Embedder)
            for place, text in enumerate(wanted.texts):
                if is_over.is_set():  # nobody waits any more
                    break
                length = task.length_of(text)
                tokens += length.tokens
                if length.is_cut:
                    cut.append(place)
                if length.is_cut and not wanted.truncates:
                    text = f"input[{place}] has more than {length.tokens} tokens, the length of this model"
                    raise RefusedError(400, f"{text}; truncate: true cuts it", code="context_length_exceeded")
                with runtime.begin() as work:
                    work.preprocess(text)
                    work.execute()
                    answer = work.postprocess()
                    assert isinstance(answer, Embedding)
                    vectors.append(answer.vector)
                    taken = zip(runtime.stages, work.times_ns, strict=True)
                    times_ns.update({name: max(took_ns, 0) for name, took_ns in taken})
        return _Embedded(vectors, tokens, cut, times_ns)


def read_embedding_request(values: Mapping[str, Any], model: str) -> EmbeddingRequest:
    """Return what the body of a request asks for.

    Raises:
        RefusedError: If it asks for another model, or for what is not done here.
    """
    if unknown := sorted(values.keys() - _TAKEN):
        text = "not done here" if unknown[0] == "dimensions" else "unknown field"
        raise RefusedError(400, f"{unknown[0][:100]}: {text}", code="unknown_parameter", param=unknown[0][:100])
    if values.get("model") != model:
        raise unknown_model(values.get("model"), model)
    texts = values.get("input")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise wrong("input", "a text, or a list of them; none is empty, and tokens are not taken")
    if len(texts) > _MOST_TEXTS:
        raise wrong("input", f"up to {_MOST_TEXTS} texts a request, not {len(texts)}")
    form = values.get("encoding_format", _FORMATS[0])
    if form not in _FORMATS:
        raise wrong("encoding_format", f"one of {', '.join(_FORMATS)}")
    truncates = values.get("truncate", False)
    if not isinstance(truncates, bool):
        raise wrong("truncate", "true or false")
    clean = tuple(text.encode("utf-8", "replace").decode("utf-8") for text in texts)
    return EmbeddingRequest(clean, form == "base64", truncates)


async def _shielded(done: asyncio.Future[_Embedded]) -> _Embedded:
    return await asyncio.shield(done)


def _written(vector: Sequence[float] | NDArray[np.float32], *, is_packed: bool) -> str | list[float]:
    if is_packed:
        return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
    return [float(value) for value in vector]
